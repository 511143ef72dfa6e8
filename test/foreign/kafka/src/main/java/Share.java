import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;

import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.AlterConfigOp;
import org.apache.kafka.clients.admin.ConfigEntry;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.consumer.AcknowledgeType;
import org.apache.kafka.clients.consumer.KafkaShareConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

/**
 * Consumes with two share groups on the cluster at args[0], until the process is
 * killed. Each rejects its first record and releases its second one until no
 * delivery is left; the brokers write the dead letters to dlq.headers (without
 * the records, the default) and to dlq.copies.
 */
public class Share {
    private static final long WRITTEN = 1764547200000L; // 2025-12-01T00:00:00Z

    public static void main(String[] args) throws Exception {
        String servers = args[0];
        try (Admin admin = Admin.create(Map.of("bootstrap.servers", servers))) {
            var enabled = Map.of("errors.deadletterqueue.group.enable", "true");
            admin.createTopics(List.of(new NewTopic("jobs", 1, (short) 1),
                new NewTopic("dlq.headers", 1, (short) 1).configs(enabled),
                new NewTopic("dlq.copies", 1, (short) 1).configs(enabled))).all().get();
            configure(admin, "headers-app", "dlq.headers", false);
            configure(admin, "copies-app", "dlq.copies", true);
        }
        try (var producer = new KafkaProducer<>(Map.of("bootstrap.servers", servers), new StringSerializer(), new StringSerializer())) {
            producer.send(new ProducerRecord<>("jobs", 0, WRITTEN, "acct-17", "rejected")).get();
            var released = new ProducerRecord<>("jobs", 0, WRITTEN, "acct-18", "released");
            released.headers().add("tenant", "blue".getBytes());
            producer.send(released).get();
        }
        Thread headers = new Thread(() -> consume(servers, "headers-app"));
        headers.start();
        consume(servers, "copies-app");
    }

    private static void configure(Admin admin, String group, String topic, boolean copy) throws Exception {
        var changes = new ArrayList<AlterConfigOp>();
        Map.of("share.auto.offset.reset", "earliest", "share.delivery.count.limit", "2",
            "errors.deadletterqueue.topic.name", topic, "errors.deadletterqueue.copy.record.enable", String.valueOf(copy))
            .forEach((key, value) -> changes.add(new AlterConfigOp(new ConfigEntry(key, value), AlterConfigOp.OpType.SET)));
        admin.incrementalAlterConfigs(Map.of(new ConfigResource(ConfigResource.Type.GROUP, group), changes)).all().get();
    }

    private static void consume(String servers, String group) {
        Map<String, Object> config = Map.of("bootstrap.servers", servers, "group.id", group, "share.acknowledgement.mode", "explicit");
        try (var consumer = new KafkaShareConsumer<>(config, new StringDeserializer(), new StringDeserializer())) {
            consumer.subscribe(List.of("jobs"));
            while (true) {
                for (var record : consumer.poll(Duration.ofSeconds(1))) {
                    consumer.acknowledge(record, record.value().equals("rejected") ? AcknowledgeType.REJECT : AcknowledgeType.RELEASE);
                }
                consumer.commitSync();
            }
        }
    }
}
