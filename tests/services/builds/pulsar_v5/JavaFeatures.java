import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Base64;
import java.util.List;
import java.util.Map;
import java.util.concurrent.TimeUnit;
import java.util.regex.Pattern;
import org.apache.pulsar.client.api.CompressionType;
import org.apache.pulsar.client.api.Consumer;
import org.apache.pulsar.client.api.ConsumerBuilder;
import org.apache.pulsar.client.api.CryptoKeyReader;
import org.apache.pulsar.client.api.DeadLetterPolicy;
import org.apache.pulsar.client.api.EncryptionKeyInfo;
import org.apache.pulsar.client.api.Message;
import org.apache.pulsar.client.api.MessageId;
import org.apache.pulsar.client.api.Producer;
import org.apache.pulsar.client.api.ProducerBuilder;
import org.apache.pulsar.client.api.PulsarClient;
import org.apache.pulsar.client.api.Reader;
import org.apache.pulsar.client.api.Schema;
import org.apache.pulsar.client.api.SubscriptionInitialPosition;
import org.apache.pulsar.client.api.SubscriptionType;

/** Pulsar's classic Java client: one line of base64 words per feature in, "ok =word …" or "error =text" out. */
public class JavaFeatures {
    private static final int WAIT_S = 30;

    public static class Order {
        public int id;
        public String name;
    }

    private final String url;
    private final PulsarClient client;

    JavaFeatures(String url) throws Exception {
        this.url = url;
        client = PulsarClient.builder().serviceUrl(url).operationTimeout(WAIT_S, TimeUnit.SECONDS).build();
    }

    public static void main(String[] args) throws Exception {
        PrintStream answers = System.out;
        System.setOut(System.err);
        JavaFeatures driver = new JavaFeatures(args[0]);
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            String[] words = line.split(" ");
            for (int index = 0; index < words.length; index++) {
                words[index] = new String(Base64.getDecoder().decode(words[index]), StandardCharsets.UTF_8);
            }
            StringBuilder answer = new StringBuilder();
            try {
                List<String> found = driver.act(words);
                answer.append("ok");
                found.forEach(word -> answer.append(" =").append(encode(word)));
            } catch (Throwable problem) {
                problem.printStackTrace();
                answer.setLength(0);
                answer.append("error =").append(encode(String.valueOf(problem)));
            }
            answers.println(answer);
            answers.flush();
        }
        System.exit(0);
    }

    private static String encode(String text) {
        return Base64.getEncoder().encodeToString(text.getBytes(StandardCharsets.UTF_8));
    }

    private List<String> act(String[] words) throws Exception {
        String topic = words[1];
        switch (words[0]) {
            case "transactions": return transactions();
            case "delayed": return delayed(topic, SubscriptionType.valueOf(words[2]));
            case "pattern": return pattern(words[2]);
            case "pattern-watch": return patternWatch(List.of(words).subList(2, words.length));
            case "bytes": return schema(topic, Schema.BYTES, "text".getBytes(StandardCharsets.UTF_8));
            case "json": return order(topic, Schema.JSON(Order.class));
            case "avro": return order(topic, Schema.AVRO(Order.class));
            case "nack": return nack(topic);
            case "dead-letter": return deadLetter(topic);
            case "reader": return reader(topic);
            case "seek": return seek(topic);
            case "chunks": return chunks(topic);
            case "encrypt": return encrypt(topic, words[2], words[3], List.of(words).subList(4, words.length));
            case "decrypt": return decrypt(topic, Integer.parseInt(words[2]), words[3]);
            default: throw new IllegalArgumentException(words[0]);
        }
    }

    private ConsumerBuilder<byte[]> consumer(String topic, SubscriptionType type) {
        return client.newConsumer().topic(topic).subscriptionName("s").subscriptionType(type)
            .subscriptionInitialPosition(SubscriptionInitialPosition.Earliest);
    }

    private static <T> Message<T> next(Consumer<T> consumer) throws Exception {
        Message<T> message = consumer.receive(WAIT_S, TimeUnit.SECONDS);
        if (message == null) {
            throw new IllegalStateException("no message within " + WAIT_S + " s");
        }
        return message;
    }

    private static List<String> take(Consumer<byte[]> consumer, int count) throws Exception {
        List<String> found = new ArrayList<>();
        for (int index = 0; index < count; index++) {
            Message<byte[]> message = next(consumer);
            consumer.acknowledge(message);
            found.add(new String(message.getValue(), StandardCharsets.UTF_8));
        }
        return found;
    }

    private void publish(String topic, String... values) throws Exception {
        try (Producer<byte[]> producer = client.newProducer().topic(topic).create()) {
            for (String value : values) {
                producer.newMessage().key("k").value(value.getBytes(StandardCharsets.UTF_8)).send();
            }
        }
    }

    private List<String> transactions() throws Exception {
        try (PulsarClient other = PulsarClient.builder().serviceUrl(url).enableTransaction(true).build()) {
            other.newTransaction().withTransactionTimeout(5, TimeUnit.SECONDS).build().get(WAIT_S, TimeUnit.SECONDS);
            return List.of("begun");
        } catch (Exception problem) {
            return List.of(String.valueOf(problem));
        }
    }

    private List<String> delayed(String topic, SubscriptionType type) throws Exception {
        try (Consumer<byte[]> consumer = consumer(topic, type).subscribe();
                Producer<byte[]> producer = client.newProducer().topic(topic).enableBatching(false).create()) {
            producer.newMessage().key("k").value("later".getBytes()).deliverAfter(2, TimeUnit.SECONDS).send();
            producer.newMessage().key("k").value("now".getBytes()).send();
            return take(consumer, 2);
        }
    }

    private List<String> pattern(String namespace) throws Exception {
        try (Consumer<byte[]> consumer = patternConsumer(namespace + "/.*")) {
            // With no topic to subscribe, 5.0.0-M1 completes subscribe() in the super constructor: a close() before the
            // constructor has ended throws a NullPointerException.
            consumer.receive(500, TimeUnit.MILLISECONDS);
        }
        return List.of("subscribed");
    }

    /** Topics that are created after the subscription; the client does not poll within the test. */
    private List<String> patternWatch(List<String> topics) throws Exception {
        String prefix = topics.get(0).replaceFirst("^persistent://", "").replaceFirst("/[^/]*$", "/");
        List<String> found = new ArrayList<>();
        try (Consumer<byte[]> consumer = patternConsumer(prefix + "(?:new|later)-.*")) {
            for (String topic : topics) {
                publish(topic, topic);
                found.addAll(take(consumer, 1));
            }
        }
        return found;
    }

    private Consumer<byte[]> patternConsumer(String pattern) throws Exception {
        return client.newConsumer().subscriptionName("s").topicsPattern(Pattern.compile("persistent://" + pattern))
            .patternAutoDiscoveryPeriod(1, TimeUnit.HOURS)
            .subscriptionInitialPosition(SubscriptionInitialPosition.Earliest).subscribe();
    }

    private <T> List<String> schema(String topic, Schema<T> schema, T value) throws Exception {
        try (Consumer<T> consumer = client.newConsumer(schema).topic(topic).subscriptionName("s").subscribe();
                Producer<T> producer = client.newProducer(schema).topic(topic).create()) {
            producer.send(value);
            Message<T> message = next(consumer);
            return List.of(new String(message.getData(), StandardCharsets.UTF_8));
        }
    }

    private List<String> order(String topic, Schema<Order> schema) throws Exception {
        Order value = new Order();
        value.id = 7;
        value.name = "seven";
        try (Consumer<Order> consumer = client.newConsumer(schema).topic(topic).subscriptionName("s").subscribe();
                Producer<Order> producer = client.newProducer(schema).topic(topic).create()) {
            producer.send(value);
            Order found = next(consumer).getValue();
            return List.of(String.valueOf(found.id), found.name);
        }
    }

    private List<String> nack(String topic) throws Exception {
        publish(topic, "x");
        try (Consumer<byte[]> consumer = consumer(topic, SubscriptionType.Shared)
                .negativeAckRedeliveryDelay(100, TimeUnit.MILLISECONDS).subscribe()) {
            consumer.negativeAcknowledge(next(consumer));
            return List.of(String.valueOf(next(consumer).getRedeliveryCount()));
        }
    }

    private List<String> deadLetter(String topic) throws Exception {
        publish(topic, "poison");
        String dead = topic + "-DLQ";
        DeadLetterPolicy policy = DeadLetterPolicy.builder().maxRedeliverCount(1).deadLetterTopic(dead)
            .initialSubscriptionName("s").build();
        try (Consumer<byte[]> consumer = consumer(topic, SubscriptionType.Shared)
                    .negativeAckRedeliveryDelay(100, TimeUnit.MILLISECONDS).deadLetterPolicy(policy).subscribe();
                Consumer<byte[]> last = consumer(dead, SubscriptionType.Shared).subscribe()) {
            for (int count = 0; count < 2; count++) {
                consumer.negativeAcknowledge(next(consumer));
            }
            while (true) {
                consumer.receive(100, TimeUnit.MILLISECONDS);
                Message<byte[]> found = last.receive(100, TimeUnit.MILLISECONDS);
                if (found != null) {
                    return List.of(new String(found.getValue(), StandardCharsets.UTF_8));
                }
            }
        }
    }

    private List<String> reader(String topic) throws Exception {
        publish(topic, "m0", "m1", "m2");
        List<String> found = new ArrayList<>();
        try (Reader<byte[]> reader = client.newReader().topic(topic).startMessageId(MessageId.earliest).create()) {
            while (reader.hasMessageAvailable()) {
                found.add(new String(reader.readNext().getValue(), StandardCharsets.UTF_8));
            }
        }
        return found;
    }

    private List<String> seek(String topic) throws Exception {
        publish(topic, "m0", "m1");
        try (Consumer<byte[]> consumer = consumer(topic, SubscriptionType.Exclusive).subscribe()) {
            take(consumer, 2);
            consumer.seek(MessageId.earliest);
            return take(consumer, 2);
        }
    }

    private List<String> chunks(String topic) throws Exception {
        try (Consumer<byte[]> consumer = consumer(topic, SubscriptionType.Exclusive).subscribe();
                Producer<byte[]> producer = client.newProducer().topic(topic).enableBatching(false)
                    .enableChunking(true).chunkMaxMessageSize(20_000).create()) {
            producer.send(new byte[200_000]);
            return List.of(String.valueOf(next(consumer).getData().length));
        }
    }

    /** Reads the same key for every name. */
    private static CryptoKeyReader key(String pem) {
        EncryptionKeyInfo key = new EncryptionKeyInfo(pem.getBytes(StandardCharsets.UTF_8), Map.of("version", "1"));
        return new CryptoKeyReader() {
            @Override
            public EncryptionKeyInfo getPublicKey(String name, Map<String, String> metadata) {
                return key;
            }

            @Override
            public EncryptionKeyInfo getPrivateKey(String name, Map<String, String> metadata) {
                return key;
            }
        };
    }

    private List<String> encrypt(String topic, String form, String pem, List<String> values) throws Exception {
        ProducerBuilder<byte[]> builder = client.newProducer().topic(topic).addEncryptionKey("app")
            .cryptoKeyReader(key(pem)).enableBatching(form.equals("batch"));
        if (form.equals("batch")) {
            builder.batchingMaxPublishDelay(200, TimeUnit.MILLISECONDS).compressionType(CompressionType.ZSTD);
        }
        if (form.equals("chunks")) {
            builder.enableChunking(true).chunkMaxMessageSize(20_000);
        }
        try (Producer<byte[]> producer = builder.create()) {
            for (String value : values) {
                producer.newMessage().key("k").value(value.getBytes(StandardCharsets.UTF_8)).sendAsync();
            }
            producer.flush();
        }
        return List.of();
    }

    private List<String> decrypt(String topic, int count, String pem) throws Exception {
        try (Consumer<byte[]> consumer = consumer(topic, SubscriptionType.Exclusive).cryptoKeyReader(key(pem))
                .subscribe()) {
            return take(consumer, count);
        }
    }
}
