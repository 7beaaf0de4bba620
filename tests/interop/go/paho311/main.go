// paho.mqtt.golang: tokens and handlers. MQTT 3.1.1.
package main

import (
	"errors"
	"fmt"
	"net"
	"net/url"

	mqtt "github.com/eclipse/paho.mqtt.golang"

	"headwater/interop/checks"
)

type link struct {
	client         mqtt.Client
	sessionPresent bool
	below          net.Conn
}

func done(token mqtt.Token, what string) error {
	if !token.WaitTimeout(checks.Wait) {
		return fmt.Errorf("%s: not within %v", what, checks.Wait)
	}
	return token.Error()
}

func dial(o checks.Options) (checks.Link, error) {
	made := &link{}
	options := mqtt.NewClientOptions().AddBroker(o.URL).SetClientID(o.ClientID).SetProtocolVersion(4)
	options.SetCleanSession(!o.Resume).SetAutoReconnect(false).SetConnectTimeout(checks.Wait).SetTLSConfig(o.TLS)
	options.SetDefaultPublishHandler(func(_ mqtt.Client, m mqtt.Message) {
		o.Inbox <- checks.Message{TopicName: m.Topic(), Payload: m.Payload(), QoS: m.Qos(), Retain: m.Retained()}
	})
	if o.Will != nil {
		options.SetBinaryWill(o.Will.TopicName, o.Will.Payload, o.Will.QoS, o.Will.Retain)
		options.SetCustomOpenConnectionFn(func(to *url.URL, _ mqtt.ClientOptions) (below net.Conn, err error) {
			below, err = net.DialTimeout("tcp", to.Host, checks.Wait)
			made.below = below
			return
		})
	}
	made.client = mqtt.NewClient(options)
	connecting := made.client.Connect()
	if err := done(connecting, "CONNACK"); err != nil {
		return nil, err
	}
	made.sessionPresent = connecting.(*mqtt.ConnectToken).SessionPresent()
	return made, nil
}

func (l *link) SessionPresent() bool { return l.sessionPresent }

func (l *link) Subscribe(topicFilter string, qos byte, _ int) (byte, error) {
	token := l.client.Subscribe(topicFilter, qos, nil)
	err := done(token, "SUBACK for "+topicFilter)
	granted := token.(*mqtt.SubscribeToken).Result()[topicFilter]
	if granted >= 0x80 { // the library makes an error of it
		return granted, nil
	}
	return granted, err
}

func (l *link) Publish(messages ...checks.Message) error {
	var tokens []mqtt.Token
	for _, m := range messages {
		tokens = append(tokens, l.client.Publish(m.TopicName, m.QoS, m.Retain, m.Payload))
	}
	var all error
	for _, token := range tokens {
		all = errors.Join(all, done(token, "acknowledgement of "+messages[0].TopicName))
	}
	return all
}

func (l *link) Cut() { l.below.Close() }

func (l *link) Close() { l.client.Disconnect(250) }

func main() { checks.Main(4, dial) }
