import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;

import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.serialization.StringSerializer;
import org.apache.kafka.connect.cli.ConnectStandalone;

/**
 * Runs a standalone Kafka Connect worker on the cluster at args[0], until the
 * process is killed. Its sink fails in the converter, in a transform and in the
 * sink itself; the dead letters go to connect-dlq.
 */
public class Connect {
    private static final long WRITTEN = 1764547200000L; // 2025-12-01T00:00:00Z

    public static void main(String[] args) throws Exception {
        String servers = args[0];
        try (Admin admin = Admin.create(Map.of("bootstrap.servers", servers))) {
            admin.createTopics(List.of(new NewTopic("ledger", 1, (short) 1), new NewTopic("connect-dlq", 1, (short) 1))).all().get();
        }
        try (var producer = new KafkaProducer<>(Map.of("bootstrap.servers", servers), new StringSerializer(), new StringSerializer())) {
            for (String value : List.of("not JSON", "{\"booked\":\"tomorrow\"}", "{\"booked\":\"2025-12-01\"}")) {
                producer.send(new ProducerRecord<>("ledger", 0, WRITTEN, "acct-17", value)).get();
            }
        }
        Path dir = Files.createTempDirectory("connect");
        ConnectStandalone.main(new String[] {
            write(dir.resolve("worker.properties"), List.of(
                "bootstrap.servers=" + servers,
                "listeners=http://127.0.0.1:0",
                "plugin.discovery=service_load",
                "offset.storage.file.filename=" + dir.resolve("offsets"),
                "offset.flush.interval.ms=1000",
                "key.converter=org.apache.kafka.connect.storage.StringConverter",
                "value.converter=org.apache.kafka.connect.json.JsonConverter",
                "value.converter.schemas.enable=false")),
            write(dir.resolve("sink.properties"), List.of(
                "name=ledger-sink",
                "connector.class=FailingSink",
                "topics=ledger",
                "tasks.max=1",
                "consumer.override.auto.offset.reset=earliest",
                "transforms=booked",
                "transforms.booked.type=org.apache.kafka.connect.transforms.TimestampConverter$Value",
                "transforms.booked.field=booked",
                "transforms.booked.format=yyyy-MM-dd",
                "transforms.booked.target.type=unix",
                "errors.tolerance=all",
                "errors.deadletterqueue.topic.name=connect-dlq",
                "errors.deadletterqueue.topic.replication.factor=1",
                "errors.deadletterqueue.context.headers.enable=true")),
        });
    }

    private static String write(Path file, List<String> lines) throws Exception {
        return Files.write(file, new ArrayList<>(lines)).toString();
    }
}
