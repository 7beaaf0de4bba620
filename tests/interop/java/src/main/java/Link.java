import java.util.Arrays;
import java.util.List;
import java.util.Map;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;

/** One connection of one version. Every call is bounded. */
interface Link extends AutoCloseable {
    long WAIT_S = 10;

    boolean sessionPresent();

    /** The reason code of the SUBACK. */
    int subscribe(String topicFilter, int qos) throws Exception;

    /** Sends all of them at once, then waits for every acknowledgement. */
    void publish(List<Message> messages) throws Exception;

    @Override
    void close() throws Exception;

    static <T> T bounded(Future<T> future) throws Exception {
        return future.get(WAIT_S, TimeUnit.SECONDS);
    }

    /** Where and how to connect. {@code resume}: Clean Start 0, and an expiry of 300 s in version 5. */
    record Options(String host, int port, String clientId, boolean resume, Message will, String webSocketPath,
            String ca, BlockingQueue<Message> inbox) {
    }

    /** The properties of a PUBLISH of version 5; the library keeps the subscription identifiers to itself. */
    record Properties(boolean isText, long expiry, String contentType, String responseTopic, String correlation,
            List<Map.Entry<String, String>> user) {
    }

    /** What a subscriber gets, in either version. */
    record Message(String topicName, byte[] payload, int qos, boolean retain, Properties properties) {
        Message(String topicName, byte[] payload, int qos) {
            this(topicName, payload, qos, false, null);
        }

        boolean is(Message other) {
            return topicName.equals(other.topicName) && Arrays.equals(payload, other.payload) && qos == other.qos
                    && retain == other.retain;
        }

        @Override
        public String toString() {
            String start = new String(payload, 0, Math.min(payload.length, 8));
            return "%s %s... (%d bytes, QoS %d, retain %b)".formatted(topicName, start, payload.length, qos, retain);
        }
    }
}
