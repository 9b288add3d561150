import java.util.concurrent.ExecutionException;
import org.apache.pulsar.client.admin.MetadataMigration;
import org.apache.pulsar.client.admin.PulsarAdmin;
import org.apache.pulsar.client.admin.PulsarAdminException;
import org.apache.pulsar.common.migration.MigrationPhase;
import org.apache.pulsar.common.migration.MigrationState;

/** Moves the metadata to args[1] and tries what is refused; prints a line for each answer. */
public class MetadataMigrations {
    public static void main(String[] args) throws Exception {
        try (PulsarAdmin admin = PulsarAdmin.builder().serviceHttpUrl(args[0]).build()) {
            MetadataMigration migration = admin.metadataMigration();
            show(migration.status().get());
            refused(migration, "foo:bar");
            migration.start(args[1]).get();
            System.out.println("started");
            MigrationState state = migration.status().get();
            for (int tries = 0; state.getPhase() != MigrationPhase.COMPLETED && tries < 300; tries++) {
                Thread.sleep(100);
                state = migration.status().get();
            }
            show(state);
            refused(migration, args[1]);
        }
    }

    private static void show(MigrationState state) {
        System.out.println("state " + state.getPhase() + " " + state.getTargetUrl());
    }

    private static void refused(MetadataMigration migration, String target) throws Exception {
        try {
            migration.start(target).get();
            System.out.println("not refused");
        } catch (ExecutionException error) {
            PulsarAdminException cause = (PulsarAdminException) error.getCause();
            System.out.println("refused " + cause.getStatusCode() + " " + cause.getMessage());
        }
    }
}
