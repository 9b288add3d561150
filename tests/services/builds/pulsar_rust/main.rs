// The Rust client of Apache Pulsar, driven by tests: `pulsar-rust FEATURE SERVICE_URL TOPIC` prints one JSON object.
use std::{env, error::Error, time::Duration};

use futures::TryStreamExt;
use pulsar::{
    consumer::{ConsumerOptions, InitialPosition},
    Consumer, ConsumerBuilder, Pulsar, SubType, TokioExecutor,
};
use serde_json::{json, Value};

type Client = Pulsar<TokioExecutor>;
type Outcome<T> = Result<T, Box<dyn Error>>;

const WITHIN: Duration = Duration::from_secs(30);

fn subscription(client: &Client, topic: &str, kind: SubType) -> ConsumerBuilder<TokioExecutor> {
    client
        .consumer()
        .with_topic(topic)
        .with_subscription("s")
        .with_subscription_type(kind)
        .with_options(ConsumerOptions {
            initial_position: InitialPosition::Earliest,
            ..Default::default()
        })
}

async fn publish(client: &Client, topic: &str, count: usize) -> Outcome<()> {
    let mut producer = client.producer().with_topic(topic).build().await?;
    for number in 0..count {
        producer.send_non_blocking(format!("m{number}")).await?.await?;
    }
    Ok(())
}

/// The next messages, acknowledged.
async fn take(consumer: &mut Consumer<Vec<u8>, TokioExecutor>, count: usize) -> Outcome<Vec<String>> {
    let mut found = vec![];
    while found.len() < count {
        let message = tokio::time::timeout(WITHIN, consumer.try_next())
            .await??
            .ok_or("the consumer ended")?;
        found.push(String::from_utf8(message.payload.data.clone())?);
        consumer.ack(&message).await?;
    }
    Ok(found)
}

async fn exchange(client: &Client, topic: &str, kind: SubType) -> Outcome<Value> {
    let mut consumer: Consumer<Vec<u8>, _> = subscription(client, topic, kind).build().await?;
    publish(client, topic, 100).await?;
    Ok(json!({ "received": take(&mut consumer, 100).await? }))
}

async fn nack(client: &Client, topic: &str) -> Outcome<Value> {
    let mut consumer: Consumer<Vec<u8>, _> = subscription(client, topic, SubType::Shared)
        .with_unacked_message_resend_delay(Some(Duration::from_millis(100)))
        .build()
        .await?;
    publish(client, topic, 1).await?;
    let message = tokio::time::timeout(WITHIN, consumer.try_next()).await??.ok_or("the consumer ended")?;
    consumer.nack(&message).await?;
    Ok(json!({ "received": take(&mut consumer, 1).await? }))
}

#[tokio::main]
async fn main() -> Outcome<()> {
    let words: Vec<String> = env::args().collect();
    let [_, feature, url, topic] = words.as_slice() else {
        return Err("usage: pulsar-rust FEATURE URL TOPIC".into());
    };
    let client: Client = Pulsar::builder(url, TokioExecutor).build().await?;
    let found = match feature.as_str() {
        "shared" => exchange(&client, topic, SubType::Shared).await?,
        "exclusive" => exchange(&client, topic, SubType::Exclusive).await?,
        "failover" => exchange(&client, topic, SubType::Failover).await?,
        "key-shared" => exchange(&client, topic, SubType::KeyShared).await?,
        "nack" => nack(&client, topic).await?,
        _ => return Err(format!("no feature {feature}").into()),
    };
    println!("{found}");
    Ok(())
}
