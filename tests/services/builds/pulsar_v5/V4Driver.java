import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Base64;
import java.util.List;
import java.util.concurrent.TimeUnit;
import org.apache.pulsar.client.api.Consumer;
import org.apache.pulsar.client.api.Message;
import org.apache.pulsar.client.api.Producer;
import org.apache.pulsar.client.api.ProducerBuilder;
import org.apache.pulsar.client.api.PulsarClient;
import org.apache.pulsar.client.api.Schema;
import org.apache.pulsar.client.api.SubscriptionInitialPosition;

/**
 * Pulsar's classic Java client, for messages without a value: words in base64 in, "ok word word …" or "error text" out.
 *
 * <p>A value is "null", or "=" and the text.
 */
public class V4Driver {
    private static final int PATIENCE_SECONDS = 30;

    private final PulsarClient client;

    V4Driver(String serviceUrl) throws Exception {
        client = PulsarClient.builder().serviceUrl(serviceUrl).build();
    }

    public static void main(String[] args) throws Exception {
        PrintStream answers = System.out;
        System.setOut(System.err);
        V4Driver driver = new V4Driver(args[0]);
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            String[] words = line.split(" ");
            for (int index = 0; index < words.length; index++) {
                words[index] = new String(Base64.getDecoder().decode(words[index]), StandardCharsets.UTF_8);
            }
            StringBuilder answer = new StringBuilder("ok");
            try {
                for (String word : driver.act(words)) {
                    answer.append(" =").append(encode(word));
                }
            } catch (Throwable problem) {
                problem.printStackTrace();
                answer.setLength(0);
                answer.append("error =").append(encode(problem.toString()));
            }
            answers.println(answer);
            answers.flush();
        }
        driver.client.shutdown();
        System.exit(0);
    }

    private List<String> act(String[] words) throws Exception {
        switch (words[0]) {
            case "send": // topic batched|single key value [key value …]
                send(words);
                return List.of();
            case "take": // topic subscription count: key and value of each
                return take(words[1], words[2], Integer.parseInt(words[3]));
            default:
                throw new IllegalArgumentException("unknown word " + words[0]);
        }
    }

    private void send(String[] words) throws Exception {
        boolean isBatched = words[2].equals("batched");
        ProducerBuilder<byte[]> builder = client.newProducer(Schema.BYTES).topic(words[1]).enableBatching(isBatched);
        if (isBatched) {
            builder.batchingMaxPublishDelay(PATIENCE_SECONDS, TimeUnit.SECONDS);
        }
        try (Producer<byte[]> producer = builder.create()) {
            for (int at = 3; at < words.length; at += 2) {
                String value = words[at + 1];
                byte[] body = value.equals("null") ? null : value.substring(1).getBytes(StandardCharsets.UTF_8);
                producer.newMessage().key(words[at]).value(body).sendAsync();
            }
            producer.flush();
        }
    }

    private List<String> take(String topic, String subscription, int count) throws Exception {
        List<String> found = new ArrayList<>();
        try (Consumer<byte[]> consumer = client.newConsumer(Schema.BYTES).topic(topic).subscriptionName(subscription)
                .subscriptionInitialPosition(SubscriptionInitialPosition.Earliest).subscribe()) {
            while (found.size() < 2 * count) {
                Message<byte[]> message = consumer.receive(PATIENCE_SECONDS, TimeUnit.SECONDS);
                if (message == null) {
                    break;
                }
                consumer.acknowledge(message);
                found.add(message.getKey());
                byte[] body = message.getValue();
                found.add(body == null ? "null" : "=" + new String(body, StandardCharsets.UTF_8));
            }
        }
        return found;
    }

    private static String encode(String text) {
        return Base64.getEncoder().encodeToString(text.getBytes(StandardCharsets.UTF_8));
    }
}
