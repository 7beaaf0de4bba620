import com.hivemq.client.mqtt.MqttClient;
import com.hivemq.client.mqtt.MqttGlobalPublishFilter;
import com.hivemq.client.mqtt.MqttWebSocketConfig;
import com.hivemq.client.mqtt.datatypes.MqttQos;
import com.hivemq.client.mqtt.mqtt5.Mqtt5AsyncClient;
import com.hivemq.client.mqtt.mqtt5.datatypes.Mqtt5UserProperties;
import com.hivemq.client.mqtt.mqtt5.datatypes.Mqtt5UserProperty;
import com.hivemq.client.mqtt.mqtt5.exceptions.Mqtt5SubAckException;
import com.hivemq.client.mqtt.mqtt5.message.connect.Mqtt5Connect;
import com.hivemq.client.mqtt.mqtt5.message.publish.Mqtt5PayloadFormatIndicator;
import com.hivemq.client.mqtt.mqtt5.message.publish.Mqtt5Publish;
import com.hivemq.client.mqtt.mqtt5.message.publish.Mqtt5PublishResult;
import com.hivemq.client.mqtt.mqtt5.message.subscribe.Mqtt5Subscribe;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutionException;

/** HiveMQ's client for MQTT 5. */
final class Link5 implements Link {
    private final Mqtt5AsyncClient client;
    private final boolean sessionPresent;

    Link5(Options options) throws Exception {
        var builder = MqttClient.builder().useMqttVersion5().identifier(options.clientId())
                .serverHost(options.host()).serverPort(options.port());
        if (options.ca() != null) {
            builder.sslConfig(Trust.only(options.ca()));
        }
        if (options.webSocketPath() != null) {
            builder.webSocketConfig(MqttWebSocketConfig.builder().serverPath(options.webSocketPath()).build());
        }
        client = builder.buildAsync();
        client.publishes(MqttGlobalPublishFilter.ALL, publish -> options.inbox().add(message(publish)));
        var connect = Mqtt5Connect.builder().cleanStart(!options.resume())
                .sessionExpiryInterval(options.resume() ? 300 : 0);
        if (options.will() != null) {
            connect.willPublish(publish(options.will()).asWill());
        }
        sessionPresent = Link.bounded(client.connect(connect.build())).isSessionPresent();
    }

    @Override
    public boolean sessionPresent() {
        return sessionPresent;
    }

    @Override
    public int subscribe(String topicFilter, int qos) throws Exception {
        var asked = Mqtt5Subscribe.builder().topicFilter(topicFilter).qos(MqttQos.fromCode(qos)).build();
        try {
            return Link.bounded(client.subscribe(asked)).getReasonCodes().get(0).getCode();
        } catch (ExecutionException error) {
            if (error.getCause() instanceof Mqtt5SubAckException refused) {
                return refused.getMqttMessage().getReasonCodes().get(0).getCode();
            }
            throw error;
        }
    }

    @Override
    public void publish(List<Message> messages) throws Exception {
        List<CompletableFuture<Mqtt5PublishResult>> sent = new ArrayList<>();
        for (Message message : messages) {
            sent.add(client.publish(publish(message)));
        }
        for (var each : sent) {
            Throwable error = Link.bounded(each).getError().orElse(null);
            if (error != null) {
                throw new IllegalStateException("not published", error);
            }
        }
    }

    private static Mqtt5Publish publish(Message message) {
        var builder = Mqtt5Publish.builder().topic(message.topicName()).payload(message.payload())
                .qos(MqttQos.fromCode(message.qos())).retain(message.retain());
        Properties properties = message.properties();
        if (properties != null) {
            List<Mqtt5UserProperty> user = new ArrayList<>();
            properties.user().forEach(each -> user.add(Mqtt5UserProperty.of(each.getKey(), each.getValue())));
            builder.payloadFormatIndicator(properties.isText() ? Mqtt5PayloadFormatIndicator.UTF_8 : null)
                    .messageExpiryInterval(properties.expiry()).contentType(properties.contentType())
                    .responseTopic(properties.responseTopic())
                    .correlationData(properties.correlation().getBytes(StandardCharsets.ISO_8859_1))
                    .userProperties(Mqtt5UserProperties.of(user));
        }
        return builder.build();
    }

    private static Message message(Mqtt5Publish publish) {
        List<Map.Entry<String, String>> user = new ArrayList<>();
        for (Mqtt5UserProperty each : publish.getUserProperties().asList()) {
            user.add(Map.entry(each.getName().toString(), each.getValue().toString()));
        }
        var properties = new Properties(
                publish.getPayloadFormatIndicator().filter(Mqtt5PayloadFormatIndicator.UTF_8::equals).isPresent(),
                publish.getMessageExpiryInterval().orElse(0), publish.getContentType().map(Object::toString).orElse(""),
                publish.getResponseTopic().map(Object::toString).orElse(""),
                publish.getCorrelationData().map(Link5::text).orElse(""), user);
        return new Message(publish.getTopic().toString(), publish.getPayloadAsBytes(), publish.getQos().getCode(),
                publish.isRetain(), properties);
    }

    private static String text(ByteBuffer bytes) {
        return StandardCharsets.ISO_8859_1.decode(bytes).toString();
    }

    @Override
    public void close() throws Exception {
        if (client.getState().isConnected()) {
            Link.bounded(client.disconnect());
        }
    }
}
