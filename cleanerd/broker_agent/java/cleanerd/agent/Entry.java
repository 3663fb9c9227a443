package cleanerd.agent;

import java.io.ByteArrayInputStream;
import java.io.FileInputStream;
import java.io.FileOutputStream;
import java.lang.instrument.Instrumentation;
import java.nio.channels.FileChannel;
import java.nio.file.Files;
import java.nio.file.OpenOption;
import java.nio.file.Path;
import java.nio.file.Paths;
import java.nio.file.StandardOpenOption;
import java.security.MessageDigest;
import java.util.HashMap;
import java.util.Map;
import java.util.jar.JarInputStream;
import java.util.zip.ZipEntry;

/**
 * Where an attached cleanerd comes in. Begins a conversation in a thread of its own, which ends when cleanerd closes its side
 * or ends: the system closes the pipes of a process that dies. A JVM that was started with -javaagent listens instead.
 *
 * This class is loaded once in the life of a broker. All others are loaded from the jar that each attach names, once for each
 * hash: so another version of cleanerd finds its own classes, and the same one finds those that are there.
 */
public final class Entry {
    private static final Map LOADERS = new HashMap(); // ClassLoader by hash of the jar, in hexadecimal digits
    private static final int LOADERS_MAX = 16;

    private Entry() {
    }

    /** Called by the JVM. arguments: SHA-256 of the jar, token of the pipes, their directory, a line feed, the jar. */
    public static void agentmain(String arguments) {
        final String[] parts = arguments.split(" ", 3);
        if (parts.length == 3) {
            Thread thread = new Thread("cleanerd-agent") {
                public void run() {
                    int end = parts[2].indexOf('\n');
                    converse(parts[0], parts[2].substring(end + 1), parts[2].substring(0, end) + "/.cleanerd-agent-" + parts[1]);
                }
            };
            thread.setDaemon(true);
            thread.start();
        }
    }

    /** Called by the JVM that was started with -javaagent. A broker without an agent is better than none. */
    public static void premain(String arguments, Instrumentation jvm) {
        try {
            Path jar = Paths.get(Entry.class.getProtectionDomain().getCodeSource().getLocation().toURI());
            Class found = loader(hash(Files.readAllBytes(jar)), jar).loadClass("cleanerd.agent.Listener");
            Object listener = found.getConstructor(new Class[] {Instrumentation.class}).newInstance(new Object[] {jvm});
            Thread thread = new Thread((Runnable) listener, "cleanerd-agent-listener");
            thread.setDaemon(true);
            thread.start();
        } catch (Throwable error) {
            System.err.println("cleanerd-agent: does not listen: " + error);
        }
    }

    static void converse(String hash, String jar, String pipes) {
        try {
            // held open for a moment: to open a pipe waits for its other side, which may have gone
            FileChannel requestsHeld = hold(pipes + ".requests");
            FileInputStream requests = new FileInputStream(pipes + ".requests");
            requestsHeld.close();
            FileOutputStream answers = null;
            try {
                FileChannel answersHeld = hold(pipes + ".answers");
                answers = new FileOutputStream(pipes + ".answers");
                answersHeld.close();
                conversation(hash, jar, requests, answers).run();
            } finally {
                requests.close();
                if (answers != null) {
                    answers.close();
                }
            }
        } catch (Throwable error) {
            // the other side is gone: nobody is left to hear of it, and the broker has no part in it
        }
    }

    private static FileChannel hold(String pipe) throws Exception {
        OpenOption[] options = {StandardOpenOption.READ, StandardOpenOption.WRITE};
        return FileChannel.open(Paths.get(pipe), options);
    }

    private static Runnable conversation(String hash, String jar, FileInputStream requests, FileOutputStream answers)
            throws Exception {
        try {
            Class found = loader(hash, Paths.get(jar)).loadClass("cleanerd.agent.Conversation");
            Class[] parameters = {java.io.InputStream.class, java.io.OutputStream.class};
            return (Runnable) found.getConstructor(parameters).newInstance(new Object[] {requests, answers});
        } catch (Throwable error) {
            answers.write(Failure.frame(String.valueOf(error)));
            throw new Exception(error);
        }
    }

    private static synchronized ClassLoader loader(String hash, Path jar) throws Exception {
        ClassLoader known = (ClassLoader) LOADERS.get(hash);
        if (known != null) {
            return known;
        }
        if (LOADERS.size() >= LOADERS_MAX) {
            throw new IllegalStateException("this broker has met " + LOADERS_MAX + " versions of the agent: restart it");
        }
        byte[] content = Files.readAllBytes(jar);
        String found = hash(content);
        if (!found.equals(hash)) {
            throw new IllegalStateException(jar + ": expected SHA-256 " + hash + ", found " + found);
        }
        ClassLoader loader = new JarClasses(content);
        LOADERS.put(hash, loader);
        return loader;
    }

    private static String hash(byte[] content) throws Exception {
        StringBuilder found = new StringBuilder();
        for (byte one : MessageDigest.getInstance("SHA-256").digest(content)) {
            found.append(String.format("%02x", new Object[] {Integer.valueOf(one & 0xff)}));
        }
        return found.toString();
    }

    /** Classes of a jar in memory. Its own come first, but for this file's. */
    private static final class JarClasses extends ClassLoader {
        private final Map found = new HashMap(); // byte[] by name of the class

        JarClasses(byte[] jar) throws Exception {
            super(Entry.class.getClassLoader());
            JarInputStream in = new JarInputStream(new ByteArrayInputStream(jar));
            for (ZipEntry entry = in.getNextEntry(); entry != null; entry = in.getNextEntry()) {
                if (entry.getName().endsWith(".class")) {
                    java.io.ByteArrayOutputStream out = new java.io.ByteArrayOutputStream();
                    byte[] buffer = new byte[4096];
                    for (int n = in.read(buffer); n > 0; n = in.read(buffer)) {
                        out.write(buffer, 0, n);
                    }
                    String name = entry.getName().substring(0, entry.getName().length() - 6).replace('/', '.');
                    found.put(name, out.toByteArray());
                }
            }
        }

        protected Class loadClass(String name, boolean resolve) throws ClassNotFoundException {
            synchronized (getClassLoadingLock(name)) {
                Class loaded = findLoadedClass(name);
                if (loaded != null) {
                    return loaded;
                }
                byte[] code = (byte[]) found.get(name);
                return code == null ? super.loadClass(name, resolve) : defineClass(name, code, 0, code.length);
            }
        }
    }
}
