/** `pulsar-perf produce|consume|read ARGUMENT...` without the commands that need a broker's jars. */
import org.apache.pulsar.testclient.CmdBase;
import org.apache.pulsar.testclient.PerformanceConsumer;
import org.apache.pulsar.testclient.PerformanceProducer;
import org.apache.pulsar.testclient.PerformanceReader;

public final class PerfDriver {
    public static void main(String[] words) throws Exception {
        CmdBase command = switch (words[0]) {
            case "produce" -> new PerformanceProducer();
            case "consume" -> new PerformanceConsumer();
            case "read" -> new PerformanceReader();
            default -> throw new IllegalArgumentException(words[0]);
        };
        System.exit(command.run(java.util.Arrays.copyOfRange(words, 1, words.length)) ? 0 : 1);
    }
}
