import java.io.ByteArrayOutputStream;
import java.net.URI;
import java.nio.charset.StandardCharsets;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.Deque;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.UUID;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;

/** HiveMQ's client: builders and futures. MQTT 3.1.1 and 5. The checks are the same for both. */
final class Interop {
    private static final int COUNT = 50;
    private static final int TRIES = 5; // a retained message may reach the other edge a moment after its acknowledgement
    private static final long ABSENT_MS = 300; // how long a message that must not come is waited for
    private static final int NOT_SUPPORTED = 0x9E;

    private interface Check {
        void run() throws Exception;
    }

    private static final class Unsupported extends Exception {
        Unsupported(String why) {
            super(why);
        }
    }

    private final Map<String, String> arguments;
    private final int version;
    private final String prefix;
    private final Deque<Link> links = new ArrayDeque<>(); // of the check that is running

    private Interop(Map<String, String> arguments, int version) {
        this.arguments = arguments;
        this.version = version;
        this.prefix = "interop/%s/v%d".formatted(unique(), version);
    }

    public static void main(String[] words) {
        Map<String, String> arguments = new HashMap<>();
        for (String word : words) {
            arguments.put(word.substring(2, word.indexOf('=')), word.substring(word.indexOf('=') + 1));
        }
        boolean passed = true;
        for (int version : new int[] {4, 5}) {
            passed &= new Interop(arguments, version).runAll();
        }
        System.exit(passed ? 0 : 1);
    }

    private boolean runAll() {
        Map<String, Check> checks = new LinkedHashMap<>();
        checks.put("connect", this::connect);
        for (int qos = 0; qos <= 2; qos++) {
            int each = qos;
            checks.put("qos" + qos, () -> exchange(each));
        }
        checks.put("retained", this::retained);
        checks.put("will", this::will);
        checks.put("session", this::session);
        if (version == 5) {
            checks.put("shared", this::shared);
            checks.put("properties", this::properties);
        }
        if (arguments.containsKey("ws-url")) {
            checks.put("websocket", this::websocket);
        }
        if (arguments.containsKey("tls-port")) {
            checks.put("tls", this::tls);
        }
        boolean passed = true;
        for (var check : checks.entrySet()) {
            passed &= report(check.getKey(), check.getValue());
        }
        return passed;
    }

    private boolean report(String name, Check check) {
        boolean ok = false;
        String detail = "";
        String more = "";
        try {
            check.run();
            ok = true;
        } catch (Unsupported refusal) {
            detail = refusal.getMessage();
            more = ", \"unsupported\": true";
        } catch (Exception error) {
            error.printStackTrace();
            detail = error.toString();
        } finally {
            leaveAll();
        }
        String quoted = detail.replace("\\", "\\\\").replace("\"", "\\\"").replaceAll("\\p{Cntrl}", " ");
        System.out.printf("{\"check\": \"%s\", \"version\": %d, \"ok\": %b, \"detail\": \"%s\"%s}%n", name, version, ok,
                quoted, more);
        return ok;
    }

    private void leaveAll() {
        while (!links.isEmpty()) {
            try {
                links.pop().close();
            } catch (Exception error) {
                error.printStackTrace();
            }
        }
    }

    private static String unique() {
        return UUID.randomUUID().toString().substring(0, 12);
    }

    private static void expect(boolean isRight, String what, Object... values) {
        if (!isRight) {
            throw new IllegalStateException(what.formatted(values));
        }
    }

    private static byte[] payload(int number) {
        var bytes = new ByteArrayOutputStream();
        bytes.writeBytes((number + ":").getBytes(StandardCharsets.US_ASCII));
        for (int value = 0; value < 256; value++) {
            bytes.write(value);
        }
        return bytes.toByteArray();
    }

    private static List<Link.Message> messages(String topicName, int qos) {
        List<Link.Message> all = new ArrayList<>();
        for (int number = 0; number < COUNT; number++) {
            all.add(new Link.Message(topicName, payload(number), qos));
        }
        return all;
    }

    private static Link.Message text(String topicName, String payload, boolean retain) {
        return new Link.Message(topicName, payload.getBytes(StandardCharsets.UTF_8), 1, retain, null);
    }

    private Link connected(Link.Options options) throws Exception {
        Link link = version == 5 ? new Link5(options) : new Link3(options);
        links.push(link);
        return link;
    }

    private Link connected(String edge, BlockingQueue<Link.Message> inbox) throws Exception {
        return connected(options(edge, "java-" + unique(), false, null, inbox));
    }

    private Link.Options options(String edge, String clientId, boolean resume, Link.Message will,
            BlockingQueue<Link.Message> inbox) {
        int port = Integer.parseInt(arguments.get("port-" + edge));
        return new Link.Options(arguments.get("host-" + edge), port, clientId, resume, will, null, null, inbox);
    }

    private static BlockingQueue<Link.Message> inbox() {
        return new LinkedBlockingQueue<>();
    }

    private static void subscribed(Link link, String topicFilter, int qos) throws Exception {
        int granted = link.subscribe(topicFilter, qos);
        expect(granted == qos, "granted 0x%02X for %s", granted, topicFilter);
    }

    /** As many at once as the server takes from a client that it cannot tell. */
    private void publish(Link writer, List<Link.Message> messages) throws Exception {
        int window = Integer.parseInt(arguments.getOrDefault("window", "20"));
        for (int start = 0; start < messages.size(); start += window) {
            writer.publish(messages.subList(start, Math.min(start + window, messages.size())));
        }
    }

    private static Link.Message get(BlockingQueue<Link.Message> inbox) throws InterruptedException {
        Link.Message message = inbox.poll(Link.WAIT_S, TimeUnit.SECONDS);
        expect(message != null, "no message within %d s", Link.WAIT_S);
        return message;
    }

    private static void same(Link.Message got, Link.Message wanted, String what) {
        expect(got.is(wanted), "%s: %s instead of %s", what, got, wanted);
    }

    private static void getAll(BlockingQueue<Link.Message> inbox, List<Link.Message> wanted) throws InterruptedException {
        for (int number = 0; number < wanted.size(); number++) {
            same(get(inbox), wanted.get(number), "message %d of %d".formatted(number, wanted.size()));
        }
    }

    private void connect() throws Exception {
        for (String edge : List.of("a", "b")) {
            expect(!connected(edge, inbox()).sessionPresent(), "session present for a new client");
        }
    }

    private void exchange(int qos) throws Exception {
        for (String way : List.of("ab", "ba")) {
            String name = "%s/qos%d/%s".formatted(prefix, qos, way);
            var inbox = inbox();
            subscribed(connected(way.substring(1), inbox), name, qos);
            var sent = messages(name, qos);
            publish(connected(way.substring(0, 1), inbox()), sent);
            getAll(inbox, sent);
        }
    }

    private void retained() throws Exception {
        String name = prefix + "/retained/x";
        Link writer = connected("a", inbox());
        writer.publish(List.of(text(name, "kept", true)));
        Link.Message first = null;
        for (int tries = 0; tries < TRIES && first == null; tries++) {
            var inbox = inbox();
            subscribed(connected("b", inbox), name, 1);
            first = inbox.poll(2, TimeUnit.SECONDS);
            if (first != null) {
                same(first, text(name, "kept", true), "a new subscriber's message");
                writer.publish(List.of(text(name, "live", true)));
                same(get(inbox), text(name, "live", false), "a live message");
            }
        }
        expect(first != null, "no retained message for a new subscriber");
        writer.publish(List.of(text(name, "", true)));
        for (int tries = 0; tries < TRIES; tries++) {
            var inbox = inbox();
            subscribed(connected("b", inbox), prefix + "/retained/+", 1);
            Link.Message end = text(prefix + "/retained/end", "end", false);
            writer.publish(List.of(end));
            first = get(inbox);
            if (first.is(end)) {
                return;
            }
        }
        expect(false, "a deleted retained message is still sent: %s", first);
    }

    private void will() throws Exception {
        String name = prefix + "/will";
        var inbox = inbox();
        subscribed(connected("b", inbox), name, 1);
        Link writer = connected("a", inbox());
        try (var relay = new Relay(arguments.get("host-a"), Integer.parseInt(arguments.get("port-a")))) {
            connected(new Link.Options("127.0.0.1", relay.port(), "java-" + unique(), false,
                    text(name, "gone", false), null, null, inbox()));
        }
        same(get(inbox), text(name, "gone", false), "the will");
        connected(options("a", "java-" + unique(), false, text(name, "never", false), inbox()));
        links.pop().close();
        writer.publish(List.of(text(name, "end", false)));
        same(get(inbox), text(name, "end", false), "after a proper DISCONNECT");
    }

    private void shared() throws Exception {
        String name = prefix + "/shared";
        var inbox = inbox();
        for (String edge : List.of("a", "b")) {
            int granted = connected(edge, inbox).subscribe("$share/g/" + name, 1);
            if (granted == NOT_SUPPORTED) {
                throw new Unsupported("SUBACK 0x9E: shared subscriptions not supported");
            }
            expect(granted == 1, "granted 0x%02X for the shared subscription", granted);
        }
        var sent = messages(name, 1);
        publish(connected("a", inbox()), sent);
        List<String> got = new ArrayList<>();
        List<String> wanted = new ArrayList<>();
        for (Link.Message each : sent) {
            got.add(new String(get(inbox).payload(), StandardCharsets.ISO_8859_1));
            wanted.add(new String(each.payload(), StandardCharsets.ISO_8859_1));
        }
        got.sort(null);
        wanted.sort(null);
        expect(got.equals(wanted), "not all messages, each once");
        Link.Message extra = inbox.poll(ABSENT_MS, TimeUnit.MILLISECONDS);
        expect(extra == null, "more than was published: %s", extra);
    }

    private void properties() throws Exception {
        String name = prefix + "/properties";
        var inbox = inbox();
        subscribed(connected("b", inbox), name, 1);
        var user = List.of(Map.entry("b", "2"), Map.entry("a", "1"), Map.entry("b", "3"));
        var sent = new Link.Properties(true, 600, "text/plain", prefix + "/answers", "\0\u00ff", user);
        byte[] payload = "é".getBytes(StandardCharsets.UTF_8);
        connected("a", inbox()).publish(List.of(new Link.Message(name, payload, 1, false, sent)));
        Link.Properties got = get(inbox).properties();
        expect(590 <= got.expiry() && got.expiry() <= 600, "message expiry %d of 600", got.expiry());
        var wanted = new Link.Properties(true, got.expiry(), "text/plain", prefix + "/answers", "\0\u00ff", user);
        expect(got.equals(wanted), "%s instead of %s", got, wanted);
    }

    private void session() throws Exception {
        String clientId = "java-" + unique();
        Link reader = connected(options("b", clientId, true, null, inbox()));
        expect(!reader.sessionPresent(), "session present at the first connection");
        Map<String, BlockingQueue<Link.Message>> found = new HashMap<>();
        for (int qos : new int[] {1, 2}) {
            subscribed(reader, prefix + "/session/" + qos, qos);
            found.put(prefix + "/session/" + qos, inbox());
        }
        links.pop().close();
        Link writer = connected("a", inbox());
        for (int qos : new int[] {1, 2}) {
            publish(writer, messages(prefix + "/session/" + qos, qos));
        }
        var inbox = inbox();
        reader = connected(options("a", clientId, true, null, inbox));
        expect(reader.sessionPresent(), "no session present on the other edge");
        for (int left = 2 * COUNT; left > 0; left--) {
            Link.Message message = get(inbox);
            found.get(message.topicName()).add(message);
        }
        for (int qos : new int[] {1, 2}) {
            String name = prefix + "/session/" + qos;
            expect(found.get(name).size() == COUNT, "%d offline messages of QoS %d", found.get(name).size(), qos);
            getAll(found.get(name), messages(name, qos));
        }
        links.pop().close();
        reader = connected(options("a", clientId, false, null, inbox()));
        expect(!reader.sessionPresent(), "session present after a clean start");
    }

    /** A transport: both ways, and a message larger than one frame. */
    private void over(String what, Link near, BlockingQueue<Link.Message> inbox, String far) throws Exception {
        var farInbox = inbox();
        Link other = connected(far, farInbox);
        both(what + "/to", near, inbox, other);
        both(what + "/from", other, farInbox, near);
    }

    private void both(String what, Link reader, BlockingQueue<Link.Message> inbox, Link writer) throws Exception {
        String name = prefix + "/" + what;
        subscribed(reader, name, 1);
        var large = new ByteArrayOutputStream();
        for (int part = 0; part < 400; part++) {
            large.writeBytes(payload(1));
        }
        var sent = List.of(new Link.Message(name, payload(0), 1), new Link.Message(name, large.toByteArray(), 1));
        writer.publish(sent);
        getAll(inbox, sent);
    }

    private void websocket() throws Exception {
        var url = URI.create(arguments.get("ws-url"));
        var inbox = inbox();
        over("ws", connected(new Link.Options(url.getHost(), url.getPort(), "java-" + unique(), false, null,
                url.getPath().substring(1), null, inbox)), inbox, "a");
    }

    private void tls() throws Exception {
        int port = Integer.parseInt(arguments.get("tls-port"));
        var inbox = inbox();
        over("tls", connected(new Link.Options(arguments.get("host-a"), port, "java-" + unique(), false, null, null,
                arguments.get("ca"), inbox)), inbox, "b");
    }
}
