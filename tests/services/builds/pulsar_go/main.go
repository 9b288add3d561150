// Apache Pulsar's Go client, driven by tests: `pulsar-go FEATURE SERVICE_URL TOPIC [ARGUMENT...]` prints one JSON object.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"sort"
	"strconv"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"
	"github.com/apache/pulsar-client-go/pulsar/log"
	"github.com/apache/pulsar-client-go/pulsaradmin/pkg/admin"
	"github.com/apache/pulsar-client-go/pulsaradmin/pkg/admin/config"
	"github.com/apache/pulsar-client-go/pulsaradmin/pkg/utils"
	"github.com/sirupsen/logrus"
)

type result map[string]any

type run struct {
	ctx    context.Context
	url    string
	topic  string
	args   []string
	client pulsar.Client
}

type order struct {
	ID   int    `json:"id" avro:"id"`
	Name string `json:"name" avro:"name"`
}

const orderDefinition = `{"type":"record","name":"Order","fields":[{"name":"id","type":"int"},{"name":"name","type":"string"}]}`

var features = map[string]func(*run) result{
	"schema":       (*run).schema,
	"delayed":      (*run).delayed,
	"pattern":      (*run).pattern,
	"transactions": (*run).transactions,
	"send":         (*run).send,
	"nack":         (*run).nack,
	"dead-letter":  (*run).deadLetter,
	"reader":       (*run).reader,
	"seek":         (*run).seek,
	"partitions":   (*run).partitions,
	"key-shared":   (*run).keyShared,
	"failover":     (*run).failover,
	"exclusive":    (*run).exclusive,
	"refused":      (*run).refused,
	"admin":        (*run).admin,
}

func main() {
	if len(os.Args) < 4 {
		fmt.Fprintln(os.Stderr, "usage: pulsar-go FEATURE URL TOPIC [ARGUMENT...]")
		os.Exit(2)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 60*time.Second)
	defer cancel()
	one := &run{ctx: ctx, url: os.Args[2], topic: os.Args[3], args: os.Args[4:]}
	feature, known := features[os.Args[1]]
	if !known {
		fail(fmt.Errorf("no feature %q", os.Args[1]))
	}
	if os.Args[1] != "admin" {
		one.client = one.connect(false)
		defer one.client.Close()
	}
	if err := json.NewEncoder(os.Stdout).Encode(feature(one)); err != nil {
		fail(err)
	}
}

func fail(err error) {
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
}

func must[T any](value T, err error) T {
	if err != nil {
		fail(err)
	}
	return value
}

func check(err error) {
	if err != nil {
		fail(err)
	}
}

func (r *run) connect(transactions bool) pulsar.Client {
	logger := logrus.New()
	logger.SetLevel(logrus.ErrorLevel)
	options := pulsar.ClientOptions{
		URL: r.url, EnableTransaction: transactions, OperationTimeout: 20 * time.Second,
		Logger: log.NewLoggerWithLogrus(logger),
	}
	if token := os.Getenv("PULSAR_TOKEN"); token != "" {
		options.Authentication = pulsar.NewAuthenticationToken(token)
	}
	return must(pulsar.NewClient(options))
}

func (r *run) producer(options pulsar.ProducerOptions) pulsar.Producer {
	options.Topic = r.topic
	return must(r.client.CreateProducer(options))
}

func (r *run) consumer(kind pulsar.SubscriptionType, options pulsar.ConsumerOptions) pulsar.Consumer {
	options.Topic, options.Type = r.topic, kind
	options.SubscriptionName = "s"
	options.SubscriptionInitialPosition = pulsar.SubscriptionPositionEarliest
	return must(r.client.Subscribe(options))
}

func (r *run) publish(producer pulsar.Producer, values ...string) {
	for _, value := range values {
		must(producer.Send(r.ctx, &pulsar.ProducerMessage{Payload: []byte(value), Key: "k"}))
	}
}

func (r *run) receive(consumer pulsar.Consumer, count int) []string {
	found := []string{}
	for len(found) < count {
		message := must(consumer.Receive(r.ctx))
		check(consumer.Ack(message))
		found = append(found, string(message.Payload()))
	}
	return found
}

func numbered(count int) []string {
	values := []string{}
	for index := range count {
		values = append(values, fmt.Sprintf("m%d", index))
	}
	return values
}

// schema KIND: one value there and back, and the version that the consumer sees.
func (r *run) schema() result {
	var schema pulsar.Schema
	var value any = "text"
	switch r.args[0] {
	case "bytes":
		schema, value = pulsar.NewBytesSchema(nil), []byte("text")
	case "string":
		schema = pulsar.NewStringSchema(nil)
	case "int32":
		schema, value = pulsar.NewInt32Schema(nil), int32(7)
	case "json":
		schema, value = pulsar.NewJSONSchema(orderDefinition, nil), order{7, "seven"}
	case "avro":
		schema, value = pulsar.NewAvroSchema(orderDefinition, nil), order{7, "seven"}
	default:
		fail(fmt.Errorf("no schema %q", r.args[0]))
	}
	consumer := r.consumer(pulsar.Exclusive, pulsar.ConsumerOptions{Schema: schema})
	producer := r.producer(pulsar.ProducerOptions{Schema: schema})
	must(producer.Send(r.ctx, &pulsar.ProducerMessage{Value: value}))
	message := must(consumer.Receive(r.ctx))
	answer := result{"payload": string(message.Payload()), "version": message.SchemaVersion()}
	if r.args[0] == "json" || r.args[0] == "avro" {
		var found order
		check(message.GetSchemaValue(&found))
		answer["value"] = found
	}
	return answer
}

// delayed KIND: the first message is delayed, the second is not; both have one key.
func (r *run) delayed() result {
	kind := map[string]pulsar.SubscriptionType{"shared": pulsar.Shared, "key-shared": pulsar.KeyShared}[r.args[0]]
	consumer := r.consumer(kind, pulsar.ConsumerOptions{})
	producer := r.producer(pulsar.ProducerOptions{DisableBatching: true})
	began := time.Now()
	must(producer.Send(r.ctx, &pulsar.ProducerMessage{Payload: []byte("later"), Key: "k", DeliverAfter: 2 * time.Second}))
	must(producer.Send(r.ctx, &pulsar.ProducerMessage{Payload: []byte("now"), Key: "k"}))
	found := r.receive(consumer, 2)
	return result{"received": found, "seconds": time.Since(began).Seconds()}
}

// pattern NAMESPACE [COUNT]: a pattern consumer of a namespace that does not exist; COUNT messages of it.
func (r *run) pattern() result {
	began := time.Now()
	consumer := must(r.client.Subscribe(pulsar.ConsumerOptions{
		TopicsPattern: "persistent://" + r.args[0] + "/.*", SubscriptionName: "s",
		AutoDiscoveryPeriod: 200 * time.Millisecond, SubscriptionInitialPosition: pulsar.SubscriptionPositionEarliest,
	}))
	seconds := time.Since(began).Seconds()
	fmt.Fprintln(os.Stderr, "subscribed") // the test may create the namespace now
	if len(r.args) == 1 {
		return result{"seconds": seconds}
	}
	return result{"seconds": seconds, "received": r.receive(consumer, must(strconv.Atoi(r.args[1])))}
}

func (r *run) transactions() result {
	logger := logrus.New()
	logger.SetLevel(logrus.ErrorLevel)
	client, err := pulsar.NewClient(pulsar.ClientOptions{
		URL: r.url, EnableTransaction: true, OperationTimeout: 5 * time.Second, Logger: log.NewLoggerWithLogrus(logger),
	})
	if err != nil {
		return result{"error": err.Error(), "at": "connect"}
	}
	defer client.Close()
	_, err = client.NewTransaction(5 * time.Second)
	if err == nil {
		return result{"error": "", "at": "none"}
	}
	return result{"error": err.Error(), "at": "transaction"}
}

// send [COMPRESSION] [chunks]: batches, compression or chunks.
func (r *run) send() result {
	options := pulsar.ProducerOptions{}
	kinds := map[string]pulsar.CompressionType{"lz4": pulsar.LZ4, "zlib": pulsar.ZLib, "zstd": pulsar.ZSTD, "snappy": pulsar.SNAPPY}
	options.CompressionType = kinds[r.args[0]]
	if r.args[0] == "chunks" {
		options.DisableBatching, options.EnableChunking, options.ChunkMaxMessageSize = true, true, 20_000
		consumer := r.consumer(pulsar.Shared, pulsar.ConsumerOptions{})
		large := make([]byte, 200_000)
		must(r.producer(options).Send(r.ctx, &pulsar.ProducerMessage{Payload: large}))
		return result{"bytes": len(r.receive(consumer, 1)[0])}
	}
	consumer := r.consumer(pulsar.Exclusive, pulsar.ConsumerOptions{})
	producer := r.producer(options)
	for _, value := range numbered(100) {
		producer.SendAsync(r.ctx, &pulsar.ProducerMessage{Payload: []byte(value)},
			func(_ pulsar.MessageID, _ *pulsar.ProducerMessage, err error) { check(err) })
	}
	check(producer.FlushWithCtx(r.ctx))
	return result{"received": r.receive(consumer, 100)}
}

func (r *run) nack() result {
	consumer := r.consumer(pulsar.Shared, pulsar.ConsumerOptions{NackRedeliveryDelay: 100 * time.Millisecond})
	r.publish(r.producer(pulsar.ProducerOptions{}), "x")
	consumer.Nack(must(consumer.Receive(r.ctx)))
	again := must(consumer.Receive(r.ctx))
	return result{"received": string(again.Payload()), "redelivery": again.RedeliveryCount()}
}

func (r *run) deadLetter() result {
	policy := &pulsar.DLQPolicy{MaxDeliveries: 2, DeadLetterTopic: r.topic + "-DLQ", InitialSubscriptionName: "dead"}
	consumer := r.consumer(pulsar.Shared, pulsar.ConsumerOptions{NackRedeliveryDelay: 100 * time.Millisecond, DLQ: policy})
	r.publish(r.producer(pulsar.ProducerOptions{}), "poison")
	go func() {
		for {
			message, err := consumer.Receive(r.ctx)
			if err != nil {
				return
			}
			consumer.Nack(message)
		}
	}()
	dead := must(r.client.Subscribe(pulsar.ConsumerOptions{
		Topic: r.topic + "-DLQ", SubscriptionName: "dead", SubscriptionInitialPosition: pulsar.SubscriptionPositionEarliest,
	}))
	return result{"received": r.receive(dead, 1)}
}

func (r *run) reader() result {
	r.publish(r.producer(pulsar.ProducerOptions{}), numbered(5)...)
	reader := must(r.client.CreateReader(pulsar.ReaderOptions{Topic: r.topic, StartMessageID: pulsar.EarliestMessageID()}))
	found := []string{}
	for reader.HasNext() {
		found = append(found, string(must(reader.Next(r.ctx)).Payload()))
	}
	return result{"received": found}
}

func (r *run) seek() result {
	consumer := r.consumer(pulsar.Exclusive, pulsar.ConsumerOptions{})
	r.publish(r.producer(pulsar.ProducerOptions{}), numbered(3)...)
	r.receive(consumer, 3)
	check(consumer.SeekByTime(time.Now().Add(-time.Hour)))
	return result{"received": r.receive(consumer, 3)}
}

func (r *run) partitions() result {
	consumer := r.consumer(pulsar.Shared, pulsar.ConsumerOptions{})
	producer := r.producer(pulsar.ProducerOptions{})
	for index, value := range numbered(30) {
		must(producer.Send(r.ctx, &pulsar.ProducerMessage{Payload: []byte(value), Key: fmt.Sprint(index)}))
	}
	found := r.receive(consumer, 30)
	sort.Strings(found)
	return result{"count": len(found), "partitions": len(must(r.client.TopicPartitions(r.topic)))}
}

func (r *run) keyShared() result {
	first, second := r.consumer(pulsar.KeyShared, pulsar.ConsumerOptions{}), r.consumer(pulsar.KeyShared, pulsar.ConsumerOptions{})
	producer := r.producer(pulsar.ProducerOptions{BatcherBuilderType: pulsar.KeyBasedBatchBuilder})
	for index := range 100 {
		must(producer.Send(r.ctx, &pulsar.ProducerMessage{Payload: []byte(fmt.Sprint(index)), Key: fmt.Sprint(index % 20)}))
	}
	owners := map[string]string{}
	counts := map[string]int{}
	for range 100 {
		var message pulsar.ConsumerMessage
		select {
		case message = <-first.Chan():
		case message = <-second.Chan():
		case <-r.ctx.Done():
			fail(r.ctx.Err())
		}
		check(message.Ack(message.Message))
		name := "first"
		if message.Consumer == second {
			name = "second"
		}
		counts[name]++
		if known, found := owners[message.Key()]; found && known != name {
			fail(errors.New("a key went to two consumers"))
		}
		owners[message.Key()] = name
	}
	return result{"consumers": len(counts), "keys": len(owners)}
}

func (r *run) failover() result {
	first := r.consumer(pulsar.Failover, pulsar.ConsumerOptions{Name: "a"})
	second := r.consumer(pulsar.Failover, pulsar.ConsumerOptions{Name: "b"})
	producer := r.producer(pulsar.ProducerOptions{})
	r.publish(producer, "one")
	found := r.receive(first, 1)
	first.Close()
	r.publish(producer, "two")
	return result{"received": append(found, r.receive(second, 1)...)}
}

func (r *run) exclusive() result {
	r.consumer(pulsar.Exclusive, pulsar.ConsumerOptions{})
	_, err := r.client.Subscribe(pulsar.ConsumerOptions{Topic: r.topic, SubscriptionName: "s"})
	if err == nil {
		fail(errors.New("a second exclusive consumer was accepted"))
	}
	return result{"error": err.Error()}
}

// refused: a producer that must be refused.
func (r *run) refused() result {
	began := time.Now()
	_, err := r.client.CreateProducer(pulsar.ProducerOptions{Topic: r.topic})
	if err == nil {
		fail(errors.New("the producer was accepted"))
	}
	return result{"error": err.Error(), "seconds": time.Since(began).Seconds()}
}

// admin: TOPIC is a namespace, URL is the HTTP address.
func (r *run) admin() result {
	client := must(admin.New(&config.Config{WebServiceURL: r.url}))
	namespace := must(utils.GetNamespaceName(r.topic))
	check(client.Namespaces().CreateNamespace(r.topic))
	check(client.Namespaces().SetTopicAutoCreation(*namespace, utils.TopicAutoCreationConfig{Allow: false}))
	name := must(utils.GetTopicName("persistent://" + r.topic + "/t"))
	check(client.Topics().Create(*name, 2))
	listed, _, err := client.Topics().List(*namespace)
	check(err)
	stats := must(client.Topics().GetPartitionedStats(*name, true))
	return result{"topics": listed, "partitions": len(stats.Partitions)}
}
