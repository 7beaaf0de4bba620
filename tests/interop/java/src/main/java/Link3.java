import com.hivemq.client.mqtt.MqttClient;
import com.hivemq.client.mqtt.MqttGlobalPublishFilter;
import com.hivemq.client.mqtt.MqttWebSocketConfig;
import com.hivemq.client.mqtt.datatypes.MqttQos;
import com.hivemq.client.mqtt.mqtt3.Mqtt3AsyncClient;
import com.hivemq.client.mqtt.mqtt3.message.connect.Mqtt3Connect;
import com.hivemq.client.mqtt.mqtt3.message.publish.Mqtt3Publish;
import com.hivemq.client.mqtt.mqtt3.message.subscribe.Mqtt3Subscribe;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CompletableFuture;

/** HiveMQ's client for MQTT 3.1.1. */
final class Link3 implements Link {
    private final Mqtt3AsyncClient client;
    private final boolean sessionPresent;

    Link3(Options options) throws Exception {
        var builder = MqttClient.builder().useMqttVersion3().identifier(options.clientId())
                .serverHost(options.host()).serverPort(options.port());
        if (options.ca() != null) {
            builder.sslConfig(Trust.only(options.ca()));
        }
        if (options.webSocketPath() != null) {
            builder.webSocketConfig(MqttWebSocketConfig.builder().serverPath(options.webSocketPath()).build());
        }
        client = builder.buildAsync();
        client.publishes(MqttGlobalPublishFilter.ALL, publish -> options.inbox().add(message(publish)));
        var connect = Mqtt3Connect.builder().cleanSession(!options.resume());
        if (options.will() != null) {
            connect.willPublish(publish(options.will()));
        }
        sessionPresent = Link.bounded(client.connect(connect.build())).isSessionPresent();
    }

    @Override
    public boolean sessionPresent() {
        return sessionPresent;
    }

    @Override
    public int subscribe(String topicFilter, int qos) throws Exception {
        var asked = Mqtt3Subscribe.builder().topicFilter(topicFilter).qos(MqttQos.fromCode(qos)).build();
        return Link.bounded(client.subscribe(asked)).getReturnCodes().get(0).getCode();
    }

    @Override
    public void publish(List<Message> messages) throws Exception {
        List<CompletableFuture<Mqtt3Publish>> sent = new ArrayList<>();
        for (Message message : messages) {
            sent.add(client.publish(publish(message)));
        }
        for (var each : sent) {
            Link.bounded(each);
        }
    }

    private static Mqtt3Publish publish(Message message) {
        return Mqtt3Publish.builder().topic(message.topicName()).payload(message.payload())
                .qos(MqttQos.fromCode(message.qos())).retain(message.retain()).build();
    }

    private static Message message(Mqtt3Publish publish) {
        return new Message(publish.getTopic().toString(), publish.getPayloadAsBytes(), publish.getQos().getCode(),
                publish.isRetain(), null);
    }

    @Override
    public void close() throws Exception {
        if (client.getState().isConnected()) {
            Link.bounded(client.disconnect());
        }
    }
}
