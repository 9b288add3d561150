import java.io.BufferedReader;
import java.io.ByteArrayOutputStream;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.io.PrintWriter;
import java.nio.charset.StandardCharsets;
import java.util.Base64;
import java.util.Properties;
import org.apache.pulsar.admin.cli.PulsarAdminTool;

/** Many pulsar-admin commands in one JVM: a line of base64 words in, "exit-code base64(out) base64(err)" out. */
public class AdminDriver extends PulsarAdminTool {
    AdminDriver(Properties properties) throws Exception {
        super(properties);
    }

    public static void main(String[] args) throws Exception {
        allowSystemExit = false;
        Properties properties = new Properties();
        for (String setting : args) {
            String[] pair = setting.split("=", 2);
            properties.setProperty(pair[0], pair[1]);
        }
        AdminDriver tool = new AdminDriver(properties);
        PrintStream answers = System.out;
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            String[] words = line.split(" ");
            for (int index = 0; index < words.length; index++) {
                words[index] = new String(Base64.getDecoder().decode(words[index]), StandardCharsets.UTF_8);
            }
            ByteArrayOutputStream out = new ByteArrayOutputStream();
            ByteArrayOutputStream err = new ByteArrayOutputStream();
            System.setOut(new PrintStream(out, true, StandardCharsets.UTF_8));
            System.setErr(new PrintStream(err, true, StandardCharsets.UTF_8));
            tool.commander.setOut(new PrintWriter(System.out, true));
            tool.commander.setErr(new PrintWriter(System.err, true));
            boolean done = false;
            try {
                done = tool.run(words);
            } catch (Throwable problem) {
                problem.printStackTrace();
            }
            System.out.flush();
            System.err.flush();
            answers.println((done ? 0 : 1) + " =" + encode(out) + " =" + encode(err));
            answers.flush();
        }
    }

    private static String encode(ByteArrayOutputStream bytes) {
        return Base64.getEncoder().encodeToString(bytes.toByteArray());
    }
}
