//! One connection in one version: rumqttc's event loop in a task, what it says in channels.

use rumqttc::v5::mqttbytes::v5 as packets5;
use rumqttc::{v5, AsyncClient, Event, EventLoop, MqttOptions, Packet, QoS, TlsConfiguration, Transport};
use std::fmt;
use std::time::Duration;
use tokio::sync::mpsc::{unbounded_channel, UnboundedReceiver, UnboundedSender};
use tokio::task::JoinHandle;
use tokio::time::timeout;

pub const WAIT: Duration = Duration::from_secs(10);
const EXPIRY_S: u32 = 300;
const PACKET_BYTES_MAX: u32 = 1 << 20; // rumqttc's own default is 10 KiB
const QUEUE: usize = 200;

/// Why a check did not pass.
pub enum Fault {
    Unsupported(String),
    Failed(String),
}

impl<E: std::error::Error> From<E> for Fault {
    fn from(error: E) -> Self {
        Fault::Failed(error.to_string())
    }
}

pub fn failed<T>(why: impl Into<String>) -> Result<T, Fault> {
    Err(Fault::Failed(why.into()))
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct Properties {
    pub payload_format: u8,
    pub expiry: u32,
    pub content_type: String,
    pub response_topic: String,
    pub correlation: Vec<u8>,
    pub user: Vec<(String, String)>,
    pub subscription_ids: Vec<usize>,
}

#[derive(Clone)]
pub struct Message {
    pub topic_name: String,
    pub payload: Vec<u8>,
    pub qos: u8,
    pub retain: bool,
    pub properties: Option<Properties>,
}

impl Message {
    pub fn new(topic_name: &str, payload: impl Into<Vec<u8>>, qos: u8) -> Self {
        let (topic_name, payload) = (topic_name.to_owned(), payload.into());
        Message { topic_name, payload, qos, retain: false, properties: None }
    }

    pub fn retained(self) -> Self {
        Message { retain: true, ..self }
    }
}

impl PartialEq for Message {
    fn eq(&self, other: &Self) -> bool {
        let here = (&self.topic_name, &self.payload, self.qos, self.retain);
        here == (&other.topic_name, &other.payload, other.qos, other.retain)
    }
}

impl fmt::Display for Message {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        let start = self.payload[..self.payload.len().min(8)].escape_ascii();
        write!(to, "{} {start}.. (QoS {}, retain {})", self.topic_name, self.qos, self.retain)
    }
}

pub enum Over {
    Tcp,
    WebSocket,
    Tls(Vec<u8>),
}

/// Where and how to connect; `resume` is Clean Start 0, and an expiry in version 5.
pub struct Options {
    pub host: String, // the whole URL for a WebSocket
    pub port: u16,
    pub over: Over,
    pub version: u8,
    pub client_id: String,
    pub resume: bool,
    pub will: Option<Message>,
    pub inbox: UnboundedSender<Message>,
    pub window: u16,
}

/// What the event loop says besides messages.
enum Said {
    Connected(bool),
    Granted(u8),
    Acknowledged,
    Ended(String),
}

enum Client {
    V4(AsyncClient),
    V5(v5::AsyncClient),
}

pub struct Link {
    pub session_present: bool,
    client: Client,
    polling: JoinHandle<()>,
    said: UnboundedReceiver<Said>,
}

fn quality(qos: u8) -> QoS {
    [QoS::AtMostOnce, QoS::AtLeastOnce, QoS::ExactlyOnce][usize::from(qos)]
}

fn quality5(qos: u8) -> v5::mqttbytes::QoS {
    use v5::mqttbytes::QoS;
    [QoS::AtMostOnce, QoS::AtLeastOnce, QoS::ExactlyOnce][usize::from(qos)]
}

fn transport(over: Over) -> Transport {
    match over {
        Over::Tcp => Transport::Tcp,
        Over::WebSocket => Transport::Ws,
        Over::Tls(ca) => Transport::Tls(TlsConfiguration::Simple { ca, alpn: None, client_auth: None }),
    }
}

impl Link {
    pub async fn connect(options: Options) -> Result<Link, Fault> {
        let (saying, said) = unbounded_channel();
        let (client, polling) = if options.version == 5 { start5(options, saying) } else { start4(options, saying) };
        let mut link = Link { session_present: false, client, polling, said };
        match link.next("CONNACK").await? {
            Said::Connected(present) => link.session_present = present,
            _ => return failed("something else than a CONNACK"),
        }
        Ok(link)
    }

    async fn next(&mut self, what: &str) -> Result<Said, Fault> {
        match timeout(WAIT, self.said.recv()).await {
            Ok(Some(Said::Ended(why))) => failed(format!("closed instead of a {what}: {why}")),
            Ok(Some(said)) => Ok(said),
            _ => failed(format!("no {what}")),
        }
    }

    /// The reason code of the SUBACK.
    pub async fn subscribe(&mut self, topic_filter: &str, qos: u8, id: Option<usize>) -> Result<u8, Fault> {
        match &self.client {
            Client::V4(client) => client.subscribe(topic_filter, quality(qos)).await?,
            Client::V5(client) => {
                let properties = packets5::SubscribeProperties { id, user_properties: vec![] };
                client.subscribe_with_properties(topic_filter, quality5(qos), properties).await?
            }
        }
        match self.next("SUBACK").await? {
            Said::Granted(code) => Ok(code),
            _ => failed("something else than a SUBACK"),
        }
    }

    /// Sends all of them at once, then waits for every acknowledgement.
    pub async fn publish(&mut self, messages: &[Message]) -> Result<(), Fault> {
        for m in messages {
            match &self.client {
                Client::V4(client) => {
                    client.publish(&m.topic_name, quality(m.qos), m.retain, m.payload.clone()).await?
                }
                Client::V5(client) => {
                    let (qos, payload) = (quality5(m.qos), m.payload.clone());
                    let properties = properties5(m.properties.clone().unwrap_or_default());
                    client.publish_with_properties(&m.topic_name, qos, m.retain, payload, properties).await?
                }
            }
        }
        for _ in messages.iter().filter(|message| message.qos > 0) {
            match self.next("acknowledgement").await? {
                Said::Acknowledged => (),
                _ => return failed("something else than an acknowledgement"),
            }
        }
        Ok(())
    }

    /// Close the socket without a DISCONNECT: whoever drops an event loop drops its connection.
    pub fn cut(&self) {
        self.polling.abort();
    }

    pub async fn close(self) {
        let asked = match &self.client {
            Client::V4(client) => client.disconnect().await.is_ok(),
            Client::V5(client) => client.disconnect().await.is_ok(),
        };
        let stop = self.polling.abort_handle();
        if !asked || timeout(WAIT, self.polling).await.is_err() {
            stop.abort();
        }
    }
}

fn start4(o: Options, saying: UnboundedSender<Said>) -> (Client, JoinHandle<()>) {
    let mut options = MqttOptions::new(o.client_id, o.host, o.port);
    options.set_clean_session(!o.resume).set_inflight(o.window).set_transport(transport(o.over));
    options.set_max_packet_size(PACKET_BYTES_MAX as usize, PACKET_BYTES_MAX as usize);
    if let Some(will) = o.will {
        options.set_last_will(rumqttc::LastWill::new(will.topic_name, will.payload, quality(will.qos), will.retain));
    }
    let (client, events) = AsyncClient::new(options, QUEUE);
    (Client::V4(client), tokio::spawn(poll4(events, saying, o.inbox)))
}

async fn poll4(mut events: EventLoop, saying: UnboundedSender<Said>, inbox: UnboundedSender<Message>) {
    loop {
        let said = match events.poll().await {
            Ok(Event::Incoming(Packet::ConnAck(connack))) => Said::Connected(connack.session_present),
            Ok(Event::Incoming(Packet::SubAck(suback))) => Said::Granted(match suback.return_codes[0] {
                rumqttc::SubscribeReasonCode::Success(qos) => qos as u8,
                rumqttc::SubscribeReasonCode::Failure => 0x80,
            }),
            Ok(Event::Incoming(Packet::PubAck(_) | Packet::PubComp(_))) => Said::Acknowledged,
            Ok(Event::Incoming(Packet::Publish(p))) => {
                let message = Message { retain: p.retain, ..Message::new(&p.topic, p.payload, p.qos as u8) };
                let _ = inbox.send(message); // nobody may be interested any more
                continue;
            }
            Ok(_) => continue,
            Err(error) => Said::Ended(error.to_string()),
        };
        let ended = matches!(said, Said::Ended(_));
        if saying.send(said).is_err() || ended {
            return;
        }
    }
}

fn start5(o: Options, saying: UnboundedSender<Said>) -> (Client, JoinHandle<()>) {
    let mut options = v5::MqttOptions::new(o.client_id, o.host, o.port);
    options.set_clean_start(!o.resume).set_outgoing_inflight_upper_limit(o.window).set_transport(transport(o.over));
    options.set_max_packet_size(Some(PACKET_BYTES_MAX));
    options.set_session_expiry_interval(o.resume.then_some(EXPIRY_S));
    if let Some(will) = o.will {
        let qos = quality5(will.qos);
        options.set_last_will(packets5::LastWill::new(will.topic_name, will.payload, qos, will.retain, None));
    }
    let (client, events) = v5::AsyncClient::new(options, QUEUE);
    (Client::V5(client), tokio::spawn(poll5(events, saying, o.inbox)))
}

async fn poll5(mut events: v5::EventLoop, saying: UnboundedSender<Said>, inbox: UnboundedSender<Message>) {
    use packets5::{Packet, SubscribeReasonCode};
    loop {
        let said = match events.poll().await {
            Ok(v5::Event::Incoming(Packet::ConnAck(connack))) => Said::Connected(connack.session_present),
            Ok(v5::Event::Incoming(Packet::SubAck(suback))) => Said::Granted(match suback.return_codes[0] {
                SubscribeReasonCode::Success(qos) => qos as u8,
                SubscribeReasonCode::SharedSubscriptionsNotSupported => 0x9E,
                _ => 0x80,
            }),
            Ok(v5::Event::Incoming(Packet::PubAck(_) | Packet::PubComp(_))) => Said::Acknowledged,
            Ok(v5::Event::Incoming(Packet::Publish(publish))) => {
                let _ = inbox.send(message5(publish)); // nobody may be interested any more
                continue;
            }
            Ok(_) => continue,
            Err(error) => Said::Ended(error.to_string()),
        };
        let ended = matches!(said, Said::Ended(_));
        if saying.send(said).is_err() || ended {
            return;
        }
    }
}

fn properties5(properties: Properties) -> packets5::PublishProperties {
    let some = |text: String| (!text.is_empty()).then_some(text);
    packets5::PublishProperties {
        payload_format_indicator: (properties.payload_format != 0).then_some(properties.payload_format),
        message_expiry_interval: (properties.expiry != 0).then_some(properties.expiry),
        content_type: some(properties.content_type),
        response_topic: some(properties.response_topic),
        correlation_data: (!properties.correlation.is_empty()).then_some(properties.correlation.into()),
        user_properties: properties.user,
        ..Default::default()
    }
}

fn message5(publish: packets5::Publish) -> Message {
    let found = publish.properties.unwrap_or_default();
    let properties = Properties {
        payload_format: found.payload_format_indicator.unwrap_or(0),
        expiry: found.message_expiry_interval.unwrap_or(0),
        content_type: found.content_type.unwrap_or_default(),
        response_topic: found.response_topic.unwrap_or_default(),
        correlation: found.correlation_data.unwrap_or_default().to_vec(),
        user: found.user_properties,
        subscription_ids: found.subscription_identifiers,
    };
    let topic_name = String::from_utf8_lossy(&publish.topic);
    let message = Message::new(&topic_name, publish.payload, publish.qos as u8);
    Message { retain: publish.retain, properties: Some(properties), ..message }
}
