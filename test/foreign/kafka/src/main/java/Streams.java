import java.util.List;
import java.util.Map;
import java.util.Properties;

import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.serialization.ByteArraySerializer;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.common.serialization.StringSerializer;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.StreamsConfig;
import org.apache.kafka.streams.errors.LogAndContinueExceptionHandler;
import org.apache.kafka.streams.errors.LogAndContinueProcessingExceptionHandler;
import org.apache.kafka.streams.kstream.Consumed;

/**
 * Runs Kafka Streams on the cluster at args[0], until the process is killed. One
 * record cannot be deserialized, one fails in the topology; the dead letters go
 * to streams-dlq.
 */
public class Streams {
    private static final long WRITTEN = 1764547200000L; // 2025-12-01T00:00:00Z

    public static void main(String[] args) throws Exception {
        String servers = args[0];
        try (Admin admin = Admin.create(Map.of("bootstrap.servers", servers))) {
            admin.createTopics(List.of(new NewTopic("balances", 1, (short) 1), new NewTopic("streams-dlq", 1, (short) 1))).all().get();
        }
        try (var producer = new KafkaProducer<>(Map.of("bootstrap.servers", servers), new StringSerializer(), new ByteArraySerializer())) {
            producer.send(new ProducerRecord<>("balances", 0, WRITTEN, "acct-17", new byte[] {1, 2, 3})).get();
            producer.send(new ProducerRecord<>("balances", 0, WRITTEN, "acct-18", new byte[] {0, 0, 0, 0})).get();
        }
        var builder = new StreamsBuilder();
        builder.stream("balances", Consumed.with(Serdes.String(), Serdes.Integer()))
            .mapValues(balance -> 1200 / balance)
            .foreach((account, share) -> {});
        var config = new Properties();
        config.put(StreamsConfig.APPLICATION_ID_CONFIG, "shares");
        config.put(StreamsConfig.BOOTSTRAP_SERVERS_CONFIG, servers);
        config.put("auto.offset.reset", "earliest");
        config.put(StreamsConfig.DESERIALIZATION_EXCEPTION_HANDLER_CLASS_CONFIG, LogAndContinueExceptionHandler.class);
        config.put(StreamsConfig.PROCESSING_EXCEPTION_HANDLER_CLASS_CONFIG, LogAndContinueProcessingExceptionHandler.class);
        config.put(StreamsConfig.ERRORS_DEAD_LETTER_QUEUE_TOPIC_NAME_CONFIG, "streams-dlq");
        new KafkaStreams(builder.build(), config).start();
        Thread.currentThread().join();
    }
}
