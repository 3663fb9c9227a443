package cleanerd.agent;

import java.io.File;
import java.io.InputStream;
import java.io.OutputStream;
import java.lang.instrument.Instrumentation;
import java.lang.reflect.Method;
import java.net.ProtocolFamily;
import java.net.SocketAddress;
import java.net.SocketOption;
import java.net.StandardProtocolFamily;
import java.nio.channels.Channels;
import java.nio.channels.SelectionKey;
import java.nio.channels.Selector;
import java.nio.channels.ServerSocketChannel;
import java.nio.channels.SocketChannel;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.attribute.PosixFilePermissions;
import java.security.Principal;
import java.util.Iterator;

/**
 * What `-javaagent` starts: a unix socket in each log directory, on which the same is said as over the pipes of an attached
 * cleanerd. It listens once this JVM is a broker that holds its log directories; in one of Kafka's tools never. Java 16.
 */
public final class Listener implements Runnable {
    private static final String SOCKET = ".cleanerd-agent.sock";
    private static final long LOOK_MS = 500;

    private final Instrumentation jvm;
    private SocketOption peerOption;

    public Listener(Instrumentation jvm) {
        this.jvm = jvm;
    }

    public void run() {
        try {
            Iterable dirs = logDirs();
            peerOption = peerOption();
            Selector selector = Selector.open();
            for (Object dir : dirs) {
                try {
                    listen(((File) dir).toPath().resolve(SOCKET), selector);
                } catch (Throwable error) {
                    report(dir + "/" + SOCKET + ": " + error);
                }
            }
            while (!selector.keys().isEmpty()) {
                accept(selector);
            }
        } catch (Throwable error) {
            report(String.valueOf(error));
        }
    }

    static void report(String reason) {
        System.err.println("cleanerd-agent: does not listen: " + reason);
    }

    /** Waits for a broker. */
    private Iterable logDirs() throws Exception {
        while (true) {
            for (Class loaded : jvm.getAllLoadedClasses()) {
                if (Broker.MANAGERS.contains(loaded.getName())) {
                    Iterable dirs = Broker.logDirs();
                    if (dirs != null) {
                        return dirs;
                    }
                }
            }
            Thread.sleep(LOOK_MS);
        }
    }

    private static SocketOption peerOption() {
        try {
            return (SocketOption) Class.forName("jdk.net.ExtendedSocketOptions").getField("SO_PEERCRED").get(null);
        } catch (Exception error) {
            throw new IllegalStateException("it takes Java 16 or later with the module jdk.net: " + error);
        }
    }

    /** The broker has the directory's .lock: a socket that is there is left of an earlier one. */
    private void listen(Path path, Selector selector) throws Exception {
        Method open = ServerSocketChannel.class.getMethod("open", new Class[] {ProtocolFamily.class});
        Method address = Class.forName("java.net.UnixDomainSocketAddress").getMethod("of", new Class[] {Path.class});
        Object family = Enum.valueOf(StandardProtocolFamily.class, "UNIX");
        ServerSocketChannel server = (ServerSocketChannel) open.invoke(null, new Object[] {family});
        Files.deleteIfExists(path);
        server.bind((SocketAddress) address.invoke(null, new Object[] {path}));
        Files.setPosixFilePermissions(path, PosixFilePermissions.fromString("rw-------"));
        server.configureBlocking(false);
        server.register(selector, SelectionKey.OP_ACCEPT, path);
    }

    private void accept(Selector selector) throws Exception {
        selector.select();
        Iterator ready = selector.selectedKeys().iterator();
        while (ready.hasNext()) {
            SelectionKey key = (SelectionKey) ready.next();
            ready.remove();
            SocketChannel peer = null;
            try {
                peer = ((ServerSocketChannel) key.channel()).accept();
                if (peer != null) {
                    begin(peer, (Path) key.attachment());
                }
            } catch (Throwable error) {
                if (peer != null) {
                    peer.close();
                }
                Thread.sleep(LOOK_MS); // out of descriptors, perhaps: not at full speed
            }
        }
    }

    /** A conversation in a thread of its own. */
    private void begin(final SocketChannel peer, Path path) throws Exception {
        if (!isKnown(peer, path)) {
            peer.close();
            return;
        }
        Thread thread = new Thread("cleanerd-agent") {
            public void run() {
                try {
                    InputStream requests = Channels.newInputStream(peer);
                    OutputStream answers = Channels.newOutputStream(peer);
                    new Conversation(requests, answers).run();
                    peer.close();
                } catch (Throwable error) {
                    // the other side is gone
                }
            }
        };
        thread.setDaemon(true);
        thread.start();
    }

    /** The user of this JVM, or root. Until the socket has its mode another one may have come in. */
    private boolean isKnown(SocketChannel peer, Path path) throws Exception {
        Object principal = peer.getOption(peerOption);
        String user = ((Principal) principal.getClass().getMethod("user", new Class[0]).invoke(principal, new Object[0])).getName();
        return user.equals("root") || user.equals(Files.getOwner(path, new java.nio.file.LinkOption[0]).getName());
    }
}
