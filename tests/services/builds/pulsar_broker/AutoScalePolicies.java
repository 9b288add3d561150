import org.apache.pulsar.client.admin.PulsarAdmin;
import org.apache.pulsar.client.admin.PulsarAdminException;
import org.apache.pulsar.common.policies.data.AutoScalePolicyOverride;

/** Sets, reads and removes the auto-scale policies of a topic and of its namespace; prints a line for each answer. */
public class AutoScalePolicies {
    public static void main(String[] args) throws Exception {
        String topic = args[1];
        String namespace = args[2];
        try (PulsarAdmin admin = PulsarAdmin.builder().serviceHttpUrl(args[0]).build()) {
            var topics = admin.scalableTopics();
            var namespaces = admin.namespaces();
            topics.createScalableTopic(topic, 2);
            System.out.println("unset " + topics.getAutoScalePolicy(topic));
            topics.setAutoScalePolicy(topic, AutoScalePolicyOverride.builder()
                    .enabled(true).maxSegments(16).splitCooldownSeconds(10L).splitMsgRateInThreshold(20000.0).build());
            var found = topics.getAutoScalePolicy(topic);
            System.out.println("topic " + found.getEnabled() + " " + found.getMaxSegments() + " "
                    + found.getSplitCooldownSeconds() + " " + found.getSplitMsgRateInThreshold() + " "
                    + found.getMinSegments());
            namespaces.setScalableTopicAutoScalePolicy(namespace,
                    AutoScalePolicyOverride.builder().minSegments(2).build());
            System.out.println("namespace " + namespaces.getScalableTopicAutoScalePolicy(namespace).getMinSegments());
            try {
                namespaces.setScalableTopicAutoScalePolicy(namespace,
                        AutoScalePolicyOverride.builder().minSegments(17).build());
            } catch (PulsarAdminException error) {
                System.out.println("refused " + error.getStatusCode() + " " + error.getMessage());
            }
            namespaces.removeScalableTopicAutoScalePolicy(namespace);
            topics.removeAutoScalePolicy(topic);
            System.out.println("removed " + topics.getAutoScalePolicy(topic) + " "
                    + namespaces.getScalableTopicAutoScalePolicy(namespace));
        }
    }
}
