//! rumqttc: an event loop that the program polls. MQTT 3.1.1 and 5. The checks are the same for both.

mod link;

use link::{failed, Fault, Link, Message, Options, Over, Properties, WAIT};
use serde_json::json;
use std::collections::HashMap;
use std::time::{Duration, SystemTime};
use tokio::sync::mpsc::{unbounded_channel, UnboundedReceiver, UnboundedSender};
use tokio::time::timeout;

const COUNT: usize = 50;
const TRIES: usize = 5; // a retained message may reach the other edge a moment after its acknowledgement
const ABSENT: Duration = Duration::from_millis(300); // how long a message that must not come is waited for
const NOT_SUPPORTED: u8 = 0x9E;
const RETAINED_WAIT: Duration = Duration::from_secs(2);

type Checked = Result<(), Fault>;
type Inbox = UnboundedReceiver<Message>;

struct Checker {
    arguments: HashMap<String, String>,
    version: u8,
    prefix: String,
    window: u16,
    names: std::cell::Cell<u32>,
}

#[derive(Clone, Copy)]
enum Edge {
    A,
    B,
    WebSocket,
    Tls,
}

fn payload(number: usize) -> Vec<u8> {
    let mut bytes = format!("{number}:").into_bytes();
    bytes.extend(0..=255);
    bytes
}

fn messages(topic_name: &str, qos: u8) -> Vec<Message> {
    (0..COUNT).map(|number| Message::new(topic_name, payload(number), qos)).collect()
}

fn expect(is_right: bool, what: impl Into<String>) -> Checked {
    if is_right {
        Ok(())
    } else {
        failed(what)
    }
}

async fn get(inbox: &mut Inbox, wait: Duration) -> Result<Message, Fault> {
    match timeout(wait, inbox.recv()).await {
        Ok(Some(message)) => Ok(message),
        _ => failed(format!("no message within {wait:?}")),
    }
}

fn same(got: &Message, wanted: &Message, what: &str) -> Checked {
    expect(got == wanted, format!("{what}: {got} instead of {wanted}"))
}

/// Exactly these, in this order.
async fn get_all(inbox: &mut Inbox, wanted: &[Message]) -> Checked {
    for (number, each) in wanted.iter().enumerate() {
        same(&get(inbox, WAIT).await?, each, &format!("message {number} of {}", wanted.len()))?;
    }
    Ok(())
}

async fn subscribed(link: &mut Link, topic_filter: &str, qos: u8, id: Option<usize>) -> Checked {
    let granted = link.subscribe(topic_filter, qos, id).await?;
    expect(granted == qos, format!("granted {granted:#04x} for {topic_filter}"))
}

impl Checker {
    fn unique(&self) -> String {
        self.names.set(self.names.get() + 1);
        format!("rust-{}-{}", self.prefix.replace('/', "-"), self.names.get())
    }

    fn options(&self, edge: Edge, inbox: UnboundedSender<Message>) -> Result<Options, Fault> {
        let argument = |name: &str| self.arguments[name].clone();
        let (host, port, over) = match edge {
            Edge::A => (argument("host-a"), argument("port-a").parse()?, Over::Tcp),
            Edge::B => (argument("host-b"), argument("port-b").parse()?, Over::Tcp),
            Edge::WebSocket => (argument("ws-url"), 0, Over::WebSocket), // the port is in the URL
            Edge::Tls => (argument("host-a"), argument("tls-port").parse()?, Over::Tls(std::fs::read(argument("ca"))?)),
        };
        let (version, client_id, window) = (self.version, self.unique(), self.window);
        Ok(Options { host, port, over, version, client_id, resume: false, will: None, inbox, window })
    }

    async fn connected(&self, edge: Edge) -> Result<(Link, Inbox), Fault> {
        let (sender, inbox) = unbounded_channel();
        Ok((Link::connect(self.options(edge, sender)?).await?, inbox))
    }

    async fn connect(&self) -> Checked {
        for edge in [Edge::A, Edge::B] {
            let (link, _) = self.connected(edge).await?;
            expect(!link.session_present, "session present for a new client")?;
            link.close().await;
        }
        Ok(())
    }

    async fn exchange(&self, qos: u8) -> Checked {
        for (way, there, here) in [("a-b", Edge::A, Edge::B), ("b-a", Edge::B, Edge::A)] {
            let name = format!("{}/qos{qos}/{way}", self.prefix);
            let (mut reader, mut inbox) = self.connected(here).await?;
            let (mut writer, _nothing) = self.connected(there).await?;
            subscribed(&mut reader, &name, qos, None).await?;
            let sent = messages(&name, qos);
            writer.publish(&sent).await?;
            get_all(&mut inbox, &sent).await?;
            writer.close().await;
            reader.close().await;
        }
        Ok(())
    }

    async fn retained(&self) -> Checked {
        let name = format!("{}/retained/x", self.prefix);
        let (mut writer, _nothing) = self.connected(Edge::A).await?;
        let kept = Message::new(&name, "kept", 1).retained();
        writer.publish(&[kept.clone()]).await?;
        for left in (0..TRIES).rev() {
            let (mut reader, mut inbox) = self.connected(Edge::B).await?;
            subscribed(&mut reader, &name, 1, None).await?;
            let found = get(&mut inbox, RETAINED_WAIT).await;
            if let Ok(first) = &found {
                same(first, &kept, "a new subscriber's message")?;
                writer.publish(&[Message::new(&name, "live", 1).retained()]).await?;
                same(&get(&mut inbox, WAIT).await?, &Message::new(&name, "live", 1), "a live message")?;
            }
            reader.close().await;
            if found.is_ok() {
                break;
            }
            expect(left > 0, "no retained message for a new subscriber")?;
        }
        writer.publish(&[Message::new(&name, "", 1).retained()]).await?;
        let end = Message::new(&format!("{}/retained/end", self.prefix), "end", 1);
        for _ in 0..TRIES {
            let (mut reader, mut inbox) = self.connected(Edge::B).await?;
            subscribed(&mut reader, &format!("{}/retained/+", self.prefix), 1, None).await?;
            writer.publish(&[end.clone()]).await?;
            let first = get(&mut inbox, WAIT).await?;
            reader.close().await;
            if first == end {
                writer.close().await;
                return Ok(());
            }
        }
        failed("a deleted retained message is still sent")
    }

    async fn with_will(&self, will: Message) -> Result<Link, Fault> {
        let (sender, _) = unbounded_channel();
        Link::connect(Options { will: Some(will), ..self.options(Edge::A, sender)? }).await
    }

    async fn will(&self) -> Checked {
        let name = format!("{}/will", self.prefix);
        let (mut watcher, mut inbox) = self.connected(Edge::B).await?;
        subscribed(&mut watcher, &name, 1, None).await?;
        let (mut writer, _nothing) = self.connected(Edge::A).await?;
        let (gone, end) = (Message::new(&name, "gone", 1), Message::new(&name, "end", 1));
        self.with_will(gone.clone()).await?.cut();
        same(&get(&mut inbox, WAIT).await?, &gone, "the will")?;
        self.with_will(Message::new(&name, "never", 1)).await?.close().await;
        writer.publish(&[end.clone()]).await?;
        same(&get(&mut inbox, WAIT).await?, &end, "after a proper DISCONNECT")?;
        writer.close().await;
        watcher.close().await;
        Ok(())
    }

    async fn shared(&self) -> Checked {
        let name = format!("{}/shared", self.prefix);
        let (sender, mut inbox) = unbounded_channel();
        let mut members = vec![];
        for edge in [Edge::A, Edge::B] {
            let mut member = Link::connect(self.options(edge, sender.clone())?).await?;
            let granted = member.subscribe(&format!("$share/g/{name}"), 1, None).await?;
            if granted == NOT_SUPPORTED {
                return Err(Fault::Unsupported("SUBACK 0x9E: shared subscriptions not supported".into()));
            }
            expect(granted == 1, format!("granted {granted:#04x} for the shared subscription"))?;
            members.push(member);
        }
        let (mut writer, _nothing) = self.connected(Edge::A).await?;
        let sent = messages(&name, 1);
        writer.publish(&sent).await?;
        let mut got = vec![];
        for _ in &sent {
            got.push(get(&mut inbox, WAIT).await?.payload);
        }
        let mut wanted: Vec<_> = sent.into_iter().map(|message| message.payload).collect();
        got.sort();
        wanted.sort();
        expect(got == wanted, "not all messages, each once")?;
        expect(get(&mut inbox, ABSENT).await.is_err(), "more messages than were published")?;
        for link in members.into_iter().chain([writer]) {
            link.close().await;
        }
        Ok(())
    }

    async fn properties(&self) -> Checked {
        let name = format!("{}/properties", self.prefix);
        let (mut reader, mut inbox) = self.connected(Edge::B).await?;
        subscribed(&mut reader, &name, 1, Some(7)).await?;
        let (mut writer, _nothing) = self.connected(Edge::A).await?;
        let user = [("b", "2"), ("a", "1"), ("b", "3")];
        let mut wanted = Properties {
            payload_format: 1,
            expiry: 600,
            content_type: "text/plain".into(),
            response_topic: format!("{}/answers", self.prefix),
            correlation: vec![0, 255],
            user: user.iter().map(|(key, value)| ((*key).into(), (*value).into())).collect(),
            subscription_ids: vec![],
        };
        let message = Message::new(&name, "é", 1);
        writer.publish(&[Message { properties: Some(wanted.clone()), ..message }]).await?;
        let got = get(&mut inbox, WAIT).await?.properties.unwrap_or_default();
        expect((590..=600).contains(&got.expiry), format!("message expiry {} of 600", got.expiry))?;
        (wanted.expiry, wanted.subscription_ids) = (got.expiry, vec![7]);
        expect(got == wanted, format!("{got:?} instead of {wanted:?}"))?;
        writer.close().await;
        reader.close().await;
        Ok(())
    }

    async fn session(&self) -> Checked {
        let client_id = self.unique();
        let again = |edge, resume| {
            let (sender, inbox) = unbounded_channel();
            let options = self.options(edge, sender);
            let client_id = client_id.clone();
            async move { Ok::<_, Fault>((Link::connect(Options { client_id, resume, ..options? }).await?, inbox)) }
        };
        let name = |qos| format!("{}/session/{qos}", self.prefix);
        let (mut reader, _nothing) = again(Edge::B, true).await?;
        expect(!reader.session_present, "session present at the first connection")?;
        for qos in [1, 2] {
            subscribed(&mut reader, &name(qos), qos, None).await?;
        }
        reader.close().await;
        let (mut writer, _nothing) = self.connected(Edge::A).await?;
        for qos in [1, 2] {
            writer.publish(&messages(&name(qos), qos)).await?;
        }
        writer.close().await;
        let (reader, mut inbox) = again(Edge::A, true).await?;
        expect(reader.session_present, "no session present on the other edge")?;
        let mut got = vec![];
        for _ in 0..2 * COUNT {
            got.push(get(&mut inbox, WAIT).await?);
        }
        for qos in [1, 2] {
            let mine: Vec<_> = got.iter().filter(|message| message.topic_name == name(qos)).cloned().collect();
            expect(mine == messages(&name(qos), qos), format!("offline messages of QoS {qos}: {} came", mine.len()))?;
        }
        reader.close().await;
        let (reader, _nothing) = again(Edge::A, false).await?;
        expect(!reader.session_present, "session present after a clean start")?;
        reader.close().await;
        Ok(())
    }

    /// A transport: both ways, and a message larger than one frame.
    async fn over(&self, what: &str, near: Edge, far: Edge) -> Checked {
        let (mut link, mut inbox) = self.connected(near).await?;
        let (mut other, mut far_inbox) = self.connected(far).await?;
        let (to, from) = (format!("{}/{what}/to", self.prefix), format!("{}/{what}/from", self.prefix));
        subscribed(&mut link, &to, 1, None).await?;
        subscribed(&mut other, &from, 1, None).await?;
        let sent = |name: &str| [Message::new(name, payload(0), 1), Message::new(name, payload(1).repeat(400), 1)];
        other.publish(&sent(&to)).await?;
        get_all(&mut inbox, &sent(&to)).await?;
        link.publish(&sent(&from)).await?;
        get_all(&mut far_inbox, &sent(&from)).await?;
        link.close().await;
        other.close().await;
        Ok(())
    }

    async fn run(&self, check: &str) -> Checked {
        match check {
            "connect" => self.connect().await,
            "qos0" => self.exchange(0).await,
            "qos1" => self.exchange(1).await,
            "qos2" => self.exchange(2).await,
            "retained" => self.retained().await,
            "will" => self.will().await,
            "session" => self.session().await,
            "shared" => self.shared().await,
            "properties" => self.properties().await,
            "websocket" => self.over("ws", Edge::WebSocket, Edge::A).await,
            "tls" => self.over("tls", Edge::Tls, Edge::B).await,
            _ => unreachable!(),
        }
    }

    async fn run_all(&self) -> bool {
        let mut checks = vec!["connect", "qos0", "qos1", "qos2", "retained", "will", "session"];
        if self.version == 5 {
            checks.extend(["shared", "properties"]);
        }
        checks.extend(self.arguments.get("ws-url").map(|_| "websocket"));
        checks.extend(self.arguments.get("tls-port").map(|_| "tls"));
        let mut passed = true;
        for check in checks {
            let mut line = json!({"check": check, "version": self.version, "ok": true, "detail": ""});
            if let Err(fault) = self.run(check).await {
                passed = false;
                line["ok"] = json!(false);
                line["detail"] = match fault {
                    Fault::Failed(why) => json!(why),
                    Fault::Unsupported(why) => {
                        line["unsupported"] = json!(true);
                        json!(why)
                    }
                };
            }
            println!("{line}");
        }
        passed
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() {
    rustls::crypto::ring::default_provider().install_default().expect("the first one");
    let arguments: HashMap<String, String> = std::env::args()
        .skip(1)
        .filter_map(|word| {
            word.trim_start_matches('-').split_once('=').map(|(name, value)| (name.into(), value.into()))
        })
        .collect();
    let window = arguments.get("window").and_then(|text| text.parse().ok()).unwrap_or(20);
    let started = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).expect("a clock after 1970");
    let mut passed = true;
    for version in [4, 5] {
        let prefix = format!("interop/{:x}/v{version}", started.as_nanos());
        let (arguments, names) = (arguments.clone(), Default::default());
        passed &= Checker { arguments, version, prefix, window, names }.run_all().await;
    }
    std::process::exit(i32::from(!passed));
}
