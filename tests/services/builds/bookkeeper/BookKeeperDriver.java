import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.Base64;
import java.util.Enumeration;
import java.util.HashMap;
import java.util.Map;
import org.apache.bookkeeper.client.BookKeeper;
import org.apache.bookkeeper.client.LedgerEntry;
import org.apache.bookkeeper.client.LedgerHandle;
import org.apache.bookkeeper.conf.ClientConfiguration;

/**
 * BookKeeper's Java client, one request per line: words in base64, answered by `ok` or `error` and more words.
 * Words of an answer that begin with `=` are base64.
 */
public class BookKeeperDriver {
    private static final PrintStream ANSWERS = System.out;

    static {
        System.setOut(System.err);  // the log goes there
    }

    private static final byte[] PASSWORD = new byte[0];
    private final BookKeeper client;
    private final Map<Long, LedgerHandle> open = new HashMap<>();

    private BookKeeperDriver(String uri) throws Exception {
        ClientConfiguration settings = new ClientConfiguration();
        settings.setMetadataServiceUri(uri);
        settings.setUseV2WireProtocol(true);
        client = new BookKeeper(settings);
    }

    public static void main(String[] arguments) throws Exception {
        BookKeeperDriver driver = new BookKeeperDriver(arguments[0]);
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            String[] words = line.split(" ");
            for (int at = 0; at < words.length; at++) {
                words[at] = new String(Base64.getDecoder().decode(words[at]), StandardCharsets.UTF_8);
            }
            String answer;
            try {
                answer = "ok" + driver.answer(words);
            } catch (Exception error) {
                answer = "error" + word(error.toString());
            }
            ANSWERS.println(answer);
            ANSWERS.flush();
        }
        driver.client.close();
    }

    private static String word(String text) {
        return " =" + Base64.getEncoder().encodeToString(text.getBytes(StandardCharsets.UTF_8));
    }

    private String answer(String[] words) throws Exception {
        switch (words[0]) {
            case "create": {  // ensemble, write quorum, ack quorum, digest -> id
                LedgerHandle made = client.createLedger(Integer.parseInt(words[1]), Integer.parseInt(words[2]),
                    Integer.parseInt(words[3]), BookKeeper.DigestType.valueOf(words[4]), PASSWORD);
                open.put(made.getId(), made);
                return " " + made.getId();
            }
            case "append": {  // id, count, text -> last id
                LedgerHandle handle = open.get(Long.parseLong(words[1]));
                long last = -1;
                for (int at = 0; at < Integer.parseInt(words[2]); at++) {
                    last = handle.addEntry((words[3] + at).getBytes(StandardCharsets.UTF_8));
                }
                return " " + last;
            }
            case "close":
                open.remove(Long.parseLong(words[1])).close();
                return "";
            case "read": {  // id -> every entry; opening recovers a ledger that is not closed
                LedgerHandle handle = client.openLedger(Long.parseLong(words[1]), BookKeeper.DigestType.CRC32C, PASSWORD);
                StringBuilder found = new StringBuilder(" " + handle.getLastAddConfirmed() + " " + handle.getLength());
                if (handle.getLastAddConfirmed() >= 0) {
                    Enumeration<LedgerEntry> entries = handle.readEntries(0, handle.getLastAddConfirmed());
                    while (entries.hasMoreElements()) {
                        found.append(" =").append(Base64.getEncoder().encodeToString(entries.nextElement().getEntry()));
                    }
                }
                handle.close();
                return found.toString();
            }
            case "delete":
                client.deleteLedger(Long.parseLong(words[1]));
                return "";
            default:
                throw new IllegalArgumentException(words[0]);
        }
    }
}
