// Package checks has the checks of both Go programs: what a client library can do is behind Link.
package checks

import (
	"bytes"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"reflect"
	"slices"
	"sort"
	"time"
)

const (
	Wait   = 10 * time.Second
	absent = 300 * time.Millisecond // how long a message that must not come is waited for
	count  = 50
	tries  = 5 // a retained message may reach the other edge a moment after its acknowledgement
)

// ErrUnsupported is the server's word that it does not offer something.
var ErrUnsupported = errors.New("unsupported")

// User is one user property.
type User struct{ Key, Value string }

// Properties of a PUBLISH, version 5.
type Properties struct {
	PayloadFormat  byte
	Expiry         uint32
	ContentType    string
	ResponseTopic  string
	Correlation    []byte
	User           []User
	SubscriptionID int
}

// Message is what a subscriber got, whichever library brought it.
type Message struct {
	TopicName  string
	Payload    []byte
	QoS        byte
	Retain     bool
	Properties *Properties
}

func (m Message) String() string {
	return fmt.Sprintf("%s %.60q (QoS %d, retain %t)", m.TopicName, m.Payload, m.QoS, m.Retain)
}

// Options of a connection.
type Options struct {
	URL      string
	TLS      *tls.Config
	ClientID string
	Resume   bool // Clean Start 0, and an expiry of 300 s in version 5
	Will     *Message
	Inbox    chan Message
}

// Link is one connection.
type Link interface {
	SessionPresent() bool
	// Subscribe returns the reason code of the SUBACK.
	Subscribe(topicFilter string, qos byte, subscriptionID int) (byte, error)
	// Publish sends all of them at once, then waits for every acknowledgement.
	Publish(messages ...Message) error
	// Cut closes the socket without a DISCONNECT.
	Cut()
	Close()
}

// Dial connects with one library in one version.
type Dial func(Options) (Link, error)

type checker struct {
	dial             Dial
	version, window  int
	prefix           string
	a, b, ws, secure string // where to connect, as URLs
	links            []Link // of the check that is running
}

// Main runs every check of one version and ends the program.
func Main(version int, dial Dial) {
	hostA, portA := flag.String("host-a", "", ""), flag.Int("port-a", 0, "")
	hostB, portB := flag.String("host-b", "", ""), flag.Int("port-b", 0, "")
	window := flag.Int("window", 20, "")
	ws, tlsPort, ca := flag.String("ws-url", "", ""), flag.Int("tls-port", 0, ""), flag.String("ca", "", "")
	flag.Parse()
	c := &checker{
		dial:    dial,
		window:  *window,
		version: version,
		prefix:  fmt.Sprintf("interop/%s/v%d", unique(), version),
		a:       fmt.Sprintf("mqtt://%s:%d", *hostA, *portA),
		b:       fmt.Sprintf("mqtt://%s:%d", *hostB, *portB),
		ws:      *ws,
		secure:  fmt.Sprintf("mqtts://%s:%d", *hostA, *tlsPort),
	}
	ok := c.run("connect", c.connect)
	for qos := byte(0); qos <= 2; qos++ {
		ok = c.run(fmt.Sprintf("qos%d", qos), func() { c.exchange(qos) }) && ok
	}
	ok = c.run("retained", c.retained) && ok
	ok = c.run("will", c.will) && ok
	ok = c.run("session", c.session) && ok
	if version == 5 {
		ok = c.run("shared", c.shared) && ok
		ok = c.run("properties", c.properties) && ok
	}
	if *ws != "" {
		ok = c.run("websocket", func() { c.over("ws", Options{URL: c.ws}, c.a) }) && ok
	}
	if *tlsPort != 0 {
		ok = c.run("tls", func() {
			pem, err := os.ReadFile(*ca)
			must(err)
			pool := x509.NewCertPool()
			pool.AppendCertsFromPEM(pem)
			c.over("tls", Options{URL: c.secure, TLS: &tls.Config{RootCAs: pool}}, c.b)
		}) && ok
	}
	if !ok {
		os.Exit(1)
	}
}

// run prints the line of one check; what fails inside of it panics.
func (c *checker) run(check string, body func()) (ok bool) {
	line := map[string]any{"check": check, "version": c.version, "ok": true, "detail": ""}
	defer func() {
		for _, link := range c.links {
			link.Close()
		}
		c.links = nil
		if fault := recover(); fault != nil {
			line["ok"], line["detail"] = false, fmt.Sprint(fault)
			if err, isError := fault.(error); isError && errors.Is(err, ErrUnsupported) {
				line["unsupported"] = true
			}
		}
		_ = json.NewEncoder(os.Stdout).Encode(line)
		ok = line["ok"] == true
	}()
	body()
	return
}

func must(err error) {
	if err != nil {
		panic(err)
	}
}

func expect(isRight bool, format string, args ...any) {
	if !isRight {
		panic(fmt.Errorf(format, args...))
	}
}

func unique() string {
	random := make([]byte, 6)
	_, err := rand.Read(random)
	must(err)
	return hex.EncodeToString(random)
}

func payloadOf(number int) []byte {
	payload := []byte(fmt.Sprintf("%d:", number))
	for value := range 256 {
		payload = append(payload, byte(value))
	}
	return payload
}

// payloads and messages of them: 50, all different.
func payloads(topicName string, qos byte) (messages []Message) {
	for number := range count {
		messages = append(messages, Message{TopicName: topicName, Payload: payloadOf(number), QoS: qos})
	}
	return
}

// client is a connection that ends with the check, and where its messages come in.
func (c *checker) client(options Options) (Link, chan Message) {
	if options.ClientID == "" {
		options.ClientID = "go-" + unique()
	}
	if options.Inbox == nil {
		options.Inbox = make(chan Message, 1000)
	}
	link, err := c.dial(options)
	must(err)
	c.links = append(c.links, link)
	return link, options.Inbox
}

// leave disconnects the newest client before the check is over.
func (c *checker) leave() {
	last := len(c.links) - 1
	c.links[last].Close()
	c.links = c.links[:last]
}

func subscribed(link Link, topicFilter string, qos byte, subscriptionID int) {
	granted, err := link.Subscribe(topicFilter, qos, subscriptionID)
	must(err)
	expect(granted == qos, "granted 0x%02X for %s", granted, topicFilter)
}

// publish sends as many at once as the server takes from a client that it cannot tell.
func (c *checker) publish(writer Link, messages []Message) {
	for some := range slices.Chunk(messages, c.window) {
		must(writer.Publish(some...))
	}
}

func get(inbox chan Message, wait time.Duration) Message {
	select {
	case message := <-inbox:
		return message
	case <-time.After(wait):
		panic(fmt.Errorf("no message within %v", wait))
	}
}

func same(got, wanted Message, what string) {
	right := got.TopicName == wanted.TopicName && bytes.Equal(got.Payload, wanted.Payload) &&
		got.QoS == wanted.QoS && got.Retain == wanted.Retain
	expect(right, "%s: %s instead of %s", what, got, wanted)
}

func getAll(inbox chan Message, wanted []Message) {
	for number, each := range wanted {
		same(get(inbox, Wait), each, fmt.Sprintf("message %d of %d", number, len(wanted)))
	}
}

func (c *checker) connect() {
	for _, url := range []string{c.a, c.b} {
		link, _ := c.client(Options{URL: url})
		expect(!link.SessionPresent(), "session present for a new client")
	}
}

func (c *checker) exchange(qos byte) {
	for _, way := range [][3]string{{"a-b", c.a, c.b}, {"b-a", c.b, c.a}} {
		name := fmt.Sprintf("%s/qos%d/%s", c.prefix, qos, way[0])
		reader, inbox := c.client(Options{URL: way[2]})
		writer, _ := c.client(Options{URL: way[1]})
		subscribed(reader, name, qos, 0)
		sent := payloads(name, qos)
		c.publish(writer, sent)
		getAll(inbox, sent)
	}
}

func (c *checker) retained() {
	name := c.prefix + "/retained/x"
	writer, _ := c.client(Options{URL: c.a})
	publish := func(name, payload string, retain bool) {
		must(writer.Publish(Message{TopicName: name, Payload: []byte(payload), QoS: 1, Retain: retain}))
	}
	publish(name, "kept", true)
	c.several("a retained message", func() bool {
		reader, inbox := c.client(Options{URL: c.b})
		subscribed(reader, name, 1, 0)
		select {
		case got := <-inbox:
			same(got, Message{TopicName: name, Payload: []byte("kept"), QoS: 1, Retain: true}, "a new subscriber's message")
		case <-time.After(2 * time.Second):
			return false
		}
		publish(name, "live", true)
		same(get(inbox, Wait), Message{TopicName: name, Payload: []byte("live"), QoS: 1}, "a live message")
		return true
	})
	publish(name, "", true)
	c.several("the deletion of a retained message", func() bool {
		reader, inbox := c.client(Options{URL: c.b})
		subscribed(reader, c.prefix+"/retained/+", 1, 0)
		publish(c.prefix+"/retained/end", "end", false)
		return string(get(inbox, Wait).Payload) == "end"
	})
}

func (c *checker) several(what string, try func() bool) {
	for range tries {
		done := try()
		c.leave()
		if done {
			return
		}
	}
	panic(fmt.Errorf("%s was not seen in %d tries", what, tries))
}

func (c *checker) will() {
	name := c.prefix + "/will"
	lastWord := func(payload string) *Message { return &Message{TopicName: name, Payload: []byte(payload), QoS: 1} }
	watcher, inbox := c.client(Options{URL: c.b})
	subscribed(watcher, name, 1, 0)
	writer, _ := c.client(Options{URL: c.a})
	victim, _ := c.client(Options{URL: c.a, Will: lastWord("gone")})
	victim.Cut()
	same(get(inbox, Wait), *lastWord("gone"), "the will")
	c.client(Options{URL: c.a, Will: lastWord("never")})
	c.leave()
	must(writer.Publish(*lastWord("end")))
	same(get(inbox, Wait), *lastWord("end"), "after a proper DISCONNECT")
}

func (c *checker) shared() {
	name := c.prefix + "/shared"
	inbox := make(chan Message, 1000)
	for _, url := range []string{c.a, c.b} {
		member, _ := c.client(Options{URL: url, Inbox: inbox})
		granted, err := member.Subscribe("$share/g/"+name, 1, 0)
		must(err)
		if granted == 0x9E {
			panic(fmt.Errorf("%w: SUBACK 0x9E for a shared subscription", ErrUnsupported))
		}
		expect(granted == 1, "granted 0x%02X for the shared subscription", granted)
	}
	writer, _ := c.client(Options{URL: c.a})
	sent := payloads(name, 1)
	c.publish(writer, sent)
	var got, wanted []string
	for _, each := range sent {
		got, wanted = append(got, string(get(inbox, Wait).Payload)), append(wanted, string(each.Payload))
	}
	sort.Strings(got)
	sort.Strings(wanted)
	expect(reflect.DeepEqual(got, wanted), "not all messages, each once")
	select {
	case extra := <-inbox:
		panic(fmt.Errorf("more than was published: %q", extra.Payload))
	case <-time.After(absent):
	}
}

func (c *checker) properties() {
	name := c.prefix + "/properties"
	reader, inbox := c.client(Options{URL: c.b})
	subscribed(reader, name, 1, 7)
	writer, _ := c.client(Options{URL: c.a})
	sent := Properties{
		PayloadFormat: 1,
		Expiry:        600,
		ContentType:   "text/plain",
		ResponseTopic: c.prefix + "/answers",
		Correlation:   []byte{0, 255},
		User:          []User{{"b", "2"}, {"a", "1"}, {"b", "3"}},
	}
	must(writer.Publish(Message{TopicName: name, Payload: []byte("é"), QoS: 1, Properties: &sent}))
	got := *get(inbox, Wait).Properties
	expect(590 <= got.Expiry && got.Expiry <= 600, "message expiry %d of 600", got.Expiry)
	expect(got.SubscriptionID == 7, "subscription identifier %d", got.SubscriptionID)
	sent.SubscriptionID, sent.Expiry = 7, got.Expiry
	expect(reflect.DeepEqual(got, sent), "properties: %+v instead of %+v", got, sent)
}

func (c *checker) session() {
	id := "go-" + unique()
	reader, _ := c.client(Options{URL: c.b, ClientID: id, Resume: true})
	expect(!reader.SessionPresent(), "session present at the first connection")
	name := func(qos byte) string { return fmt.Sprintf("%s/session/%d", c.prefix, qos) }
	for _, qos := range []byte{1, 2} {
		subscribed(reader, name(qos), qos, 0)
	}
	c.leave()
	writer, _ := c.client(Options{URL: c.a})
	for _, qos := range []byte{1, 2} {
		c.publish(writer, payloads(name(qos), qos))
	}
	c.leave()
	reader, inbox := c.client(Options{URL: c.a, ClientID: id, Resume: true})
	expect(reader.SessionPresent(), "no session present on the other edge")
	found := map[string]chan Message{name(1): make(chan Message, 2*count), name(2): make(chan Message, 2*count)}
	for range 2 * count {
		message := get(inbox, Wait)
		found[message.TopicName] <- message
	}
	for _, qos := range []byte{1, 2} {
		expect(len(found[name(qos)]) == count, "%d offline messages of QoS %d", len(found[name(qos)]), qos)
		getAll(found[name(qos)], payloads(name(qos), qos))
	}
	c.leave()
	reader, _ = c.client(Options{URL: c.a, ClientID: id})
	expect(!reader.SessionPresent(), "session present after a clean start")
}

// over is a transport: both ways, and a message larger than one frame.
func (c *checker) over(what string, near Options, far string) {
	link, inbox := c.client(near)
	other, otherInbox := c.client(Options{URL: far})
	for _, way := range []struct {
		name           string
		reader, writer Link
		inbox          chan Message
	}{{"to", link, other, inbox}, {"from", other, link, otherInbox}} {
		name := c.prefix + "/" + what + "/" + way.name
		subscribed(way.reader, name, 1, 0)
		sent := []Message{
			{TopicName: name, Payload: payloadOf(0), QoS: 1},
			{TopicName: name, Payload: bytes.Repeat(payloadOf(1), 400), QoS: 1},
		}
		must(way.writer.Publish(sent...))
		getAll(way.inbox, sent)
	}
}
