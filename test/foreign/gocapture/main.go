// Command gocapture lets a handler behind the real Watermill's poison queue fail
// on the cluster at its argument, until it is killed. It is a module of its own,
// so that the product does not depend on Watermill; test/foreign/capture runs it.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/IBM/sarama"
	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-kafka/v3/pkg/kafka"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/message/router/middleware"
)

func main() {
	if err := run([]string{os.Args[1]}); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(brokers []string) error {
	admin, err := sarama.NewClusterAdmin(brokers, sarama.NewConfig())
	if err != nil {
		return err
	}
	for _, topic := range []string{"transfers", "watermill-poison"} {
		if err := admin.CreateTopic(topic, &sarama.TopicDetail{NumPartitions: 1, ReplicationFactor: 1}, false); err != nil {
			return err
		}
	}
	logger := watermill.NewStdLogger(false, false)
	publisher, err := kafka.NewPublisher(kafka.PublisherConfig{Brokers: brokers, Marshaler: kafka.DefaultMarshaler{}}, logger)
	if err != nil {
		return err
	}
	config := kafka.DefaultSaramaSubscriberConfig()
	config.Consumer.Offsets.Initial = sarama.OffsetOldest
	subscriber, err := kafka.NewSubscriber(kafka.SubscriberConfig{
		Brokers: brokers, Unmarshaler: kafka.DefaultMarshaler{}, ConsumerGroup: "transfers-app", OverwriteSaramaConfig: config,
	}, logger)
	if err != nil {
		return err
	}
	poison, err := middleware.PoisonQueue(publisher, "watermill-poison")
	if err != nil {
		return err
	}
	router, err := message.NewRouter(message.RouterConfig{}, logger)
	if err != nil {
		return err
	}
	router.AddMiddleware(poison)
	router.AddConsumerHandler("transfer", "transfers", subscriber, func(*message.Message) error {
		return errors.New("the other account is closed")
	})
	transfer := message.NewMessage(watermill.NewUUID(), []byte(`{"amount":"12.50"}`))
	transfer.Metadata.Set("tenant", "blue")
	if err := publisher.Publish("transfers", transfer); err != nil {
		return err
	}
	return router.Run(context.Background())
}
