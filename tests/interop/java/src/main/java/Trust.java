import com.hivemq.client.mqtt.MqttClientSslConfig;
import java.nio.file.Files;
import java.nio.file.Path;
import java.security.KeyStore;
import java.security.cert.CertificateFactory;
import javax.net.ssl.TrustManagerFactory;

/** TLS with one certificate authority of a PEM file. */
final class Trust {
    static MqttClientSslConfig only(String ca) throws Exception {
        KeyStore store = KeyStore.getInstance(KeyStore.getDefaultType());
        store.load(null);
        try (var file = Files.newInputStream(Path.of(ca))) {
            store.setCertificateEntry("ca", CertificateFactory.getInstance("X.509").generateCertificate(file));
        }
        TrustManagerFactory trust = TrustManagerFactory.getInstance(TrustManagerFactory.getDefaultAlgorithm());
        trust.init(store);
        return MqttClientSslConfig.builder().trustManagerFactory(trust).build();
    }
}
