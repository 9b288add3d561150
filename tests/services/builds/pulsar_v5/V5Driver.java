import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Base64;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import org.apache.pulsar.client.api.v5.Checkpoint;
import org.apache.pulsar.client.api.v5.CheckpointConsumer;
import org.apache.pulsar.client.api.v5.Message;
import org.apache.pulsar.client.api.v5.MessageId;
import org.apache.pulsar.client.api.v5.Producer;
import org.apache.pulsar.client.api.v5.PulsarClient;
import org.apache.pulsar.client.api.v5.QueueConsumer;
import org.apache.pulsar.client.api.v5.StreamConsumer;
import org.apache.pulsar.client.api.v5.config.SubscriptionInitialPosition;
import org.apache.pulsar.client.api.v5.schema.Schema;

/**
 * Pulsar's V5 client, told what to do line by line: words in base64 in, "ok word word …" or "error text" out.
 *
 * <p>Clients of several kinds live side by side under names of the caller's choice.
 */
public class V5Driver {
    private static final Duration PATIENCE = Duration.ofSeconds(20);
    private static final Duration SEND_TIMEOUT = Duration.ofSeconds(15);

    private final PulsarClient client;
    private final Map<String, Producer<byte[]>> producers = new HashMap<>();
    private final Map<String, StreamConsumer<byte[]>> streams = new HashMap<>();
    private final Map<String, QueueConsumer<byte[]>> queues = new HashMap<>();
    private final Map<String, CheckpointConsumer<byte[]>> checkpoints = new HashMap<>();

    V5Driver(String serviceUrl) throws Exception {
        client = PulsarClient.builder().serviceUrl(serviceUrl).operationTimeout(PATIENCE).build();
    }

    public static void main(String[] args) throws Exception {
        PrintStream answers = System.out;
        System.setOut(System.err);
        V5Driver driver = new V5Driver(args[0]);
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            String[] words = line.split(" ");
            for (int index = 0; index < words.length; index++) {
                words[index] = new String(Base64.getDecoder().decode(words[index]), StandardCharsets.UTF_8);
            }
            StringBuilder answer = new StringBuilder();
            try {
                answer.append("ok");
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
        String name = words[1];
        switch (words[0]) {
            case "producer":
                producers.put(name,
                        client.newProducer(Schema.bytes()).topic(words[2]).sendTimeout(SEND_TIMEOUT).create());
                return List.of();
            case "stream":
                streams.put(name, client.newStreamConsumer(Schema.bytes()).topic(words[2]).subscriptionName(words[3])
                        .consumerName(words[4]).acknowledgmentGroupTime(Duration.ZERO)
                        .subscriptionInitialPosition(words.length < 6 ? SubscriptionInitialPosition.EARLIEST
                                : SubscriptionInitialPosition.valueOf(words[5].toUpperCase())).subscribe());
                return List.of();
            case "queue":
                queues.put(name, client.newQueueConsumer(Schema.bytes()).topic(words[2]).subscriptionName(words[3])
                        .acknowledgmentGroupTime(Duration.ZERO)
                        .subscriptionInitialPosition(SubscriptionInitialPosition.EARLIEST).subscribe());
                return List.of();
            case "checkpoint":
                Checkpoint start = words.length < 4 ? Checkpoint.earliest()
                        : Checkpoint.fromByteArray(Base64.getDecoder().decode(words[3]));
                checkpoints.put(name,
                        client.newCheckpointConsumer(Schema.bytes()).topic(words[2]).startPosition(start).create());
                return List.of();
            case "send": // name key value [key value …]: one after another
                List<String> ids = new ArrayList<>();
                for (int at = 2; at < words.length; at += 2) {
                    MessageId id = producers.get(name).newMessage().key(words[at])
                            .value(words[at + 1].getBytes(StandardCharsets.UTF_8)).send();
                    ids.add(id.toString());
                }
                return ids;
            case "pipe": // the same, all at once; how many had to be sent again
                return List.of(Integer.toString(pipe(name, words)));
            case "take": // name count milliseconds: key and value of each, acknowledged
                return take(name, Integer.parseInt(words[2]), Duration.ofMillis(Long.parseLong(words[3])));
            case "save": // the checkpoint of a checkpoint consumer
                return List.of(Base64.getEncoder().encodeToString(checkpoints.get(name).checkpoint().toByteArray()));
            case "close":
                close(name);
                return List.of();
            default:
                throw new IllegalArgumentException("unknown word " + words[0]);
        }
    }

    /**
     * M1 leaves two kinds of messages to the application when a segment is sealed under them, neither of which was sent:
     * it gives one up when the layout changes between the choice of its segment and the opening of that segment's
     * producer, and it forgets one that slips into the batch of a producer which has just been closed: its future never
     * completes, not even by the send timeout. A message that a broker did not answer does time out, and fails here.
     */
    private int pipe(String name, String[] words) throws Exception {
        List<CompletableFuture<MessageId>> sent = new ArrayList<>();
        for (int at = 2; at < words.length; at += 2) {
            sent.add(send(name, words[at], words[at + 1]));
        }
        long patience = System.nanoTime() + PATIENCE.toNanos();
        int again = 0;
        for (int number = 0; number < sent.size(); number++) {
            try {
                sent.get(number).get(Math.max(0, patience - System.nanoTime()), TimeUnit.NANOSECONDS);
                continue;
            } catch (TimeoutException forgotten) {
                System.err.println("forgotten by the client: " + words[3 + 2 * number]);
            } catch (ExecutionException refused) {
                if (!String.valueOf(refused.getMessage()).contains("not found in active segments")) {
                    throw refused;
                }
            }
            send(name, words[2 + 2 * number], words[3 + 2 * number]).get(PATIENCE.toSeconds(), TimeUnit.SECONDS);
            again++;
        }
        return again;
    }

    private CompletableFuture<MessageId> send(String name, String key, String value) {
        return producers.get(name).async().newMessage().key(key)
                .value(value.getBytes(StandardCharsets.UTF_8)).send();
    }

    private List<String> take(String name, int count, Duration patience) throws Exception {
        List<String> found = new ArrayList<>();
        while (found.size() < 2 * count) {
            Message<byte[]> message = receive(name, patience);
            if (message == null) {
                break;
            }
            found.add(message.key().orElse(""));
            found.add(new String(message.value(), StandardCharsets.UTF_8));
        }
        return found;
    }

    private Message<byte[]> receive(String name, Duration patience) throws Exception {
        if (streams.containsKey(name)) {
            Message<byte[]> message = streams.get(name).receive(patience);
            if (message != null) {
                streams.get(name).acknowledgeCumulative(message.id());
            }
            return message;
        }
        if (queues.containsKey(name)) {
            Message<byte[]> message = queues.get(name).receive(patience);
            if (message != null) {
                queues.get(name).acknowledge(message.id());
            }
            return message;
        }
        return checkpoints.get(name).receive(patience);
    }

    private void close(String name) throws Exception {
        if (producers.containsKey(name)) {
            producers.remove(name).close();
        } else if (streams.containsKey(name)) {
            streams.remove(name).close();
        } else if (queues.containsKey(name)) {
            queues.remove(name).close();
        } else {
            checkpoints.remove(name).close();
        }
    }

    private static String encode(String text) {
        return Base64.getEncoder().encodeToString(text.getBytes(StandardCharsets.UTF_8));
    }
}
