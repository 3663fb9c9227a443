package cleanerd.agent;

import java.io.DataInputStream;
import java.io.EOFException;
import java.io.InputStream;
import java.io.OutputStream;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import java.util.concurrent.Semaphore;

/**
 * Requests of one cleanerd, answered one after the other until it closes its side. No exception leaves it. There are so many
 * at once: where a disk hangs, and with it whoever holds the lock of a log, each waits in a thread of the broker.
 */
public final class Conversation implements Runnable {
    /** `Broker.find` proves that all of them can be served, or refuses. */
    static final List REQUESTS = Arrays.asList("cleaner", "describe", "lease", "request_queue", "roll", "swap");

    private static final int VERSION = 1;
    private static final int REQUEST_MAX_BYTES = 4 << 20;
    private static final int CONVERSATIONS_MAX = 16;
    private static final Semaphore FREE = new Semaphore(CONVERSATIONS_MAX);
    private final DataInputStream requests;
    private final OutputStream answers;
    private Broker broker;

    public Conversation(InputStream requests, OutputStream answers) {
        this.requests = new DataInputStream(requests);
        this.answers = answers;
    }

    public void run() {
        if (FREE.tryAcquire()) {
            try {
                converse();
            } finally {
                FREE.release();
            }
        } else {
            refuse();
        }
    }

    private void refuse() {
        try {
            answers.write(Failure.frame(CONVERSATIONS_MAX + " conversations with this broker have not ended: does a disk hang?"));
        } catch (Throwable error) {
            // the other side is gone
        }
    }

    private void converse() {
        try {
            while (true) {
                int length = requests.readInt();
                if (length < 0 || length > REQUEST_MAX_BYTES) {
                    answers.write(Failure.frame("a request of " + length + " bytes: at most " + REQUEST_MAX_BYTES));
                    return;
                }
                byte[] json = new byte[length];
                requests.readFully(json);
                answers.write(Failure.frame(answer(new String(json, "UTF-8"))));
                answers.flush();
            }
        } catch (EOFException end) {
            // cleanerd has ended, or has no more to ask
        } catch (Throwable error) {
            // the pipe is broken
        }
    }

    private Map answer(String json) {
        try {
            Map request = (Map) Json.parse(json);
            if (!Long.valueOf(VERSION).equals(request.get("version"))) {
                return Failure.answer("the agent in the broker speaks version " + VERSION + ", cleanerd version "
                    + request.get("version") + ": start the broker with the cleanerd-agent.jar of this cleanerd");
            }
            if (broker == null) {
                broker = Broker.find();
            }
            Object what = request.get("request");
            if ("hello".equals(what)) {
                return broker.hello();
            }
            if ("swap".equals(what)) {
                return new Swap(broker, request).run();
            }
            if ("describe".equals(what)) {
                return new Describe(broker, request).run();
            }
            if ("roll".equals(what)) {
                return Roll.run(broker, new NamedLog(broker, request));
            }
            if ("lease".equals(what)) {
                return Leases.run(broker, request);
            }
            if ("cleaner".equals(what)) {
                return OwnCleaner.run(broker, request);
            }
            if ("request_queue".equals(what)) {
                return RequestQueue.run();
            }
            return Failure.answer("unknown request " + what);
        } catch (Throwable error) {
            return Failure.answer(error);
        }
    }
}
