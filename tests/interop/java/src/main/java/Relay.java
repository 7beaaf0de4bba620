import java.io.IOException;
import java.net.InetAddress;
import java.net.ServerSocket;
import java.net.Socket;

/** A port of this machine that leads to another for one connection, which can be cut: HiveMQ's client always says goodbye. */
final class Relay implements AutoCloseable {
    private final ServerSocket listening = new ServerSocket(0, 1, InetAddress.getLoopbackAddress());
    private final Socket out;
    private volatile Socket in;

    Relay(String host, int port) throws IOException {
        out = new Socket(host, port);
        start(() -> {
            in = listening.accept();
            start(() -> out.getInputStream().transferTo(in.getOutputStream()));
            in.getInputStream().transferTo(out.getOutputStream());
        });
    }

    int port() {
        return listening.getLocalPort();
    }

    @Override
    public void close() throws IOException {
        out.close();
        listening.close();
        if (in != null) {
            in.close();
        }
    }

    private interface Copying {
        void run() throws IOException;
    }

    private static void start(Copying copying) {
        Thread thread = new Thread(() -> {
            try {
                copying.run();
            } catch (IOException cut) {
                return; // that is what it is for
            }
        });
        thread.setDaemon(true);
        thread.start();
    }
}
