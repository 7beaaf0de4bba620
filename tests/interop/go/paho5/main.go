// paho.golang: its connection manager autopaho, contexts everywhere. MQTT 5.
package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"strings"

	"github.com/eclipse/paho.golang/autopaho"
	"github.com/eclipse/paho.golang/paho"

	"headwater/interop/checks"
)

const expiry = 300

type link struct {
	manager        *autopaho.ConnectionManager
	sessionPresent bool
	hasShared      bool
	below          net.Conn
}

func bounded() (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.Background(), checks.Wait)
}

func dial(o checks.Options) (checks.Link, error) {
	server, err := url.Parse(o.URL)
	if err != nil {
		return nil, err
	}
	made := &link{}
	config := autopaho.ClientConfig{
		ServerUrls:                    []*url.URL{server},
		TlsCfg:                        o.TLS,
		KeepAlive:                     30,
		CleanStartOnInitialConnection: !o.Resume,
		ConnectTimeout:                checks.Wait,
		OnConnectionUp: func(_ *autopaho.ConnectionManager, connack *paho.Connack) {
			made.sessionPresent = connack.SessionPresent
			made.hasShared = connack.Properties == nil || connack.Properties.SharedSubAvailable
		},
		OnConnectionDown: func() bool { return false }, // a lost connection is lost
		ClientConfig: paho.ClientConfig{
			ClientID: o.ClientID,
			OnPublishReceived: []func(paho.PublishReceived) (bool, error){
				func(received paho.PublishReceived) (bool, error) {
					o.Inbox <- message(received.Packet)
					return true, nil
				},
			},
		},
	}
	if o.Resume {
		config.SessionExpiryInterval = expiry
	}
	if o.Will != nil {
		config.WillMessage = &paho.WillMessage{
			Topic: o.Will.TopicName, Payload: o.Will.Payload, QoS: o.Will.QoS, Retain: o.Will.Retain,
		}
		config.AttemptConnection = func(ctx context.Context, _ autopaho.ClientConfig, to *url.URL) (net.Conn, error) {
			var dialer net.Dialer
			below, err := dialer.DialContext(ctx, "tcp", to.Host)
			made.below = below
			return below, err
		}
	}
	failed := make(chan error, 1)
	config.OnConnectError = func(err error) {
		select {
		case failed <- err:
		default:
		}
	}
	made.manager, err = autopaho.NewConnection(context.Background(), config)
	if err != nil {
		return nil, err
	}
	ctx, cancel := bounded()
	defer cancel()
	if err := made.manager.AwaitConnection(ctx); err != nil {
		select {
		case why := <-failed:
			err = errors.Join(err, why)
		default:
		}
		made.Close()
		return nil, err
	}
	return made, nil
}

func message(packet *paho.Publish) checks.Message {
	found := packet.Properties
	properties := checks.Properties{
		ContentType: found.ContentType, ResponseTopic: found.ResponseTopic, Correlation: found.CorrelationData,
	}
	if found.PayloadFormat != nil {
		properties.PayloadFormat = *found.PayloadFormat
	}
	if found.MessageExpiry != nil {
		properties.Expiry = *found.MessageExpiry
	}
	if found.SubscriptionIdentifier != nil {
		properties.SubscriptionID = *found.SubscriptionIdentifier
	}
	for _, user := range found.User {
		properties.User = append(properties.User, checks.User{Key: user.Key, Value: user.Value})
	}
	return checks.Message{
		TopicName: packet.Topic, Payload: packet.Payload, QoS: packet.QoS, Retain: packet.Retain, Properties: &properties,
	}
}

func packet(m checks.Message) *paho.Publish {
	made := &paho.Publish{Topic: m.TopicName, Payload: m.Payload, QoS: m.QoS, Retain: m.Retain}
	if p := m.Properties; p != nil {
		made.Properties = &paho.PublishProperties{
			PayloadFormat: &p.PayloadFormat, MessageExpiry: &p.Expiry, ContentType: p.ContentType,
			ResponseTopic: p.ResponseTopic, CorrelationData: p.Correlation,
		}
		for _, user := range p.User {
			made.Properties.User.Add(user.Key, user.Value)
		}
	}
	return made
}

func (l *link) SessionPresent() bool { return l.sessionPresent }

func (l *link) Subscribe(topicFilter string, qos byte, subscriptionID int) (byte, error) {
	if strings.HasPrefix(topicFilter, "$share/") && !l.hasShared { // the library would not even ask
		return 0x9E, nil
	}
	ctx, cancel := bounded()
	defer cancel()
	asked := &paho.Subscribe{Subscriptions: []paho.SubscribeOptions{{Topic: topicFilter, QoS: qos}}}
	if subscriptionID != 0 {
		asked.Properties = &paho.SubscribeProperties{SubscriptionIdentifier: &subscriptionID}
	}
	suback, err := l.manager.Subscribe(ctx, asked)
	if suback != nil && len(suback.Reasons) == 1 { // the library makes an error of a refusal
		return suback.Reasons[0], nil
	}
	return 0, errors.Join(fmt.Errorf("no SUBACK for %s", topicFilter), err)
}

// Publish waits for one acknowledgement after the other in the order of the messages: a goroutine each would mix them.
func (l *link) Publish(messages ...checks.Message) error {
	ctx, cancel := bounded()
	defer cancel()
	for _, m := range messages {
		response, err := l.manager.Publish(ctx, packet(m))
		if err != nil {
			return err
		}
		if response != nil && response.ReasonCode >= 0x80 {
			return fmt.Errorf("reason code 0x%02X for %s", response.ReasonCode, m.TopicName)
		}
	}
	return nil
}

func (l *link) Cut() { l.below.Close() }

func (l *link) Close() {
	ctx, cancel := bounded()
	defer cancel()
	_ = l.manager.Disconnect(ctx)
}

func main() { checks.Main(5, dial) }
