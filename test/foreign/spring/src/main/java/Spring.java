import java.nio.charset.StandardCharsets;
import java.util.HashMap;
import java.util.Map;

import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.consumer.ConsumerConfig;
import org.apache.kafka.clients.producer.ProducerConfig;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.ByteArraySerializer;
import org.apache.kafka.common.serialization.IntegerDeserializer;
import org.apache.kafka.common.serialization.IntegerSerializer;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;
import org.springframework.context.annotation.AnnotationConfigApplicationContext;
import org.springframework.context.annotation.Bean;
import org.springframework.context.annotation.Configuration;
import org.springframework.kafka.annotation.EnableKafka;
import org.springframework.kafka.annotation.EnableKafkaRetryTopic;
import org.springframework.kafka.annotation.KafkaListener;
import org.springframework.kafka.config.ConcurrentKafkaListenerContainerFactory;
import org.springframework.kafka.core.DefaultKafkaConsumerFactory;
import org.springframework.kafka.core.DefaultKafkaProducerFactory;
import org.springframework.kafka.core.KafkaAdmin;
import org.springframework.kafka.core.KafkaTemplate;
import org.springframework.kafka.listener.DeadLetterPublishingRecoverer;
import org.springframework.kafka.listener.DefaultErrorHandler;
import org.springframework.kafka.retrytopic.RetryTopicConfiguration;
import org.springframework.kafka.retrytopic.RetryTopicConfigurationBuilder;
import org.springframework.kafka.support.serializer.DelegatingByTypeSerializer;
import org.springframework.kafka.support.serializer.ErrorHandlingDeserializer;
import org.springframework.scheduling.TaskScheduler;
import org.springframework.scheduling.concurrent.ThreadPoolTaskScheduler;
import org.springframework.util.backoff.FixedBackOff;

/**
 * Lets listeners fail on the cluster at args[0], until the process is killed.
 * orders: the recoverer, orders-dlt: again behind it, invoices: what cannot be
 * deserialized, payments: retry topics.
 */
@Configuration
@EnableKafka
@EnableKafkaRetryTopic
public class Spring {
    private static final long WRITTEN = 1764547200000L; // 2025-12-01T00:00:00Z
    private static String servers;

    public static void main(String[] args) throws Exception {
        servers = args[0];
        var context = new AnnotationConfigApplicationContext(Spring.class);
        @SuppressWarnings("unchecked")
        KafkaTemplate<Object, Object> template = context.getBean(KafkaTemplate.class);
        var order = new ProducerRecord<Object, Object>("orders", 0, WRITTEN, "acct-17", "{\"amount\":\"12.50\"}");
        order.headers().add("traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01".getBytes(StandardCharsets.UTF_8));
        template.send(order).get();
        template.send(new ProducerRecord<>("invoices", 0, WRITTEN, new byte[] {0, 0, 0, 7}, new byte[] {1, 2, 3})).get();
        template.send(new ProducerRecord<>("invoices", 0, WRITTEN, new byte[] {7}, new byte[] {0, 0, 0, 1})).get();
        template.send(new ProducerRecord<>("payments", 0, WRITTEN, "acct-18", "{\"amount\":\"13.00\"}")).get();
        Thread.currentThread().join();
    }

    @KafkaListener(topics = "orders", groupId = "orders-app", containerFactory = "texts")
    void order(String value) {
        throw new IllegalStateException("no such account", new NullPointerException("account"));
    }

    @KafkaListener(topics = "orders-dlt", groupId = "orders-again", containerFactory = "texts")
    void orderAgain(String value) {
        throw new IllegalArgumentException("still no such account");
    }

    @KafkaListener(topics = "invoices", groupId = "invoices-app", containerFactory = "numbers")
    void invoice(Integer value) {}

    @KafkaListener(topics = "payments", groupId = "payments-app", containerFactory = "plain")
    void payment(String value) {
        throw new IllegalStateException("payment refused for käse & co");
    }

    @Bean
    KafkaAdmin admin() {
        return new KafkaAdmin(Map.of("bootstrap.servers", servers));
    }

    @Bean
    KafkaAdmin.NewTopics topics() {
        return new KafkaAdmin.NewTopics(new NewTopic("orders", 1, (short) 1), new NewTopic("orders-dlt", 1, (short) 1),
            new NewTopic("orders-dlt-dlt", 1, (short) 1), new NewTopic("invoices", 1, (short) 1),
            new NewTopic("invoices-dlt", 1, (short) 1), new NewTopic("payments", 1, (short) 1));
    }

    @Bean
    KafkaTemplate<Object, Object> template() {
        var byType = new DelegatingByTypeSerializer(Map.of(
            byte[].class, new ByteArraySerializer(), String.class, new StringSerializer(), Integer.class, new IntegerSerializer()));
        return new KafkaTemplate<>(new DefaultKafkaProducerFactory<>(
            Map.of(ProducerConfig.BOOTSTRAP_SERVERS_CONFIG, servers), byType, byType));
    }

    @Bean
    TaskScheduler scheduler() {
        return new ThreadPoolTaskScheduler();
    }

    @Bean
    RetryTopicConfiguration retries(KafkaTemplate<Object, Object> template) {
        return RetryTopicConfigurationBuilder.newInstance()
            .includeTopic("payments").maxAttempts(3).fixedBackOff(500).create(template);
    }

    @Bean
    ConcurrentKafkaListenerContainerFactory<Object, Object> plain() {
        return factory(StringDeserializer.class);
    }

    @Bean
    ConcurrentKafkaListenerContainerFactory<Object, Object> texts(KafkaTemplate<Object, Object> template) {
        var texts = factory(StringDeserializer.class);
        texts.getContainerProperties().setDeliveryAttemptHeader(true);
        texts.setCommonErrorHandler(handler(template));
        return texts;
    }

    @Bean
    ConcurrentKafkaListenerContainerFactory<Object, Object> numbers(KafkaTemplate<Object, Object> template) {
        var numbers = factory(IntegerDeserializer.class);
        numbers.setCommonErrorHandler(handler(template));
        return numbers;
    }

    private static DefaultErrorHandler handler(KafkaTemplate<Object, Object> template) {
        var recoverer = new DeadLetterPublishingRecoverer(template, (r, e) -> new TopicPartition(r.topic() + "-dlt", 0));
        return new DefaultErrorHandler(recoverer, new FixedBackOff(0, 1));
    }

    private static ConcurrentKafkaListenerContainerFactory<Object, Object> factory(Class<?> deserializer) {
        Map<String, Object> config = new HashMap<>();
        config.put(ConsumerConfig.BOOTSTRAP_SERVERS_CONFIG, servers);
        config.put(ConsumerConfig.AUTO_OFFSET_RESET_CONFIG, "earliest");
        config.put(ConsumerConfig.KEY_DESERIALIZER_CLASS_CONFIG, ErrorHandlingDeserializer.class);
        config.put(ConsumerConfig.VALUE_DESERIALIZER_CLASS_CONFIG, ErrorHandlingDeserializer.class);
        config.put(ErrorHandlingDeserializer.KEY_DESERIALIZER_CLASS, deserializer);
        config.put(ErrorHandlingDeserializer.VALUE_DESERIALIZER_CLASS, deserializer);
        var factory = new ConcurrentKafkaListenerContainerFactory<Object, Object>();
        factory.setConsumerFactory(new DefaultKafkaConsumerFactory<>(config));
        return factory;
    }
}
