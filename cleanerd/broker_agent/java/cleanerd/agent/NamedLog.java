package cleanerd.agent;

import java.nio.file.NoSuchFileException;
import java.nio.file.Path;
import java.nio.file.Paths;
import java.util.Arrays;
import java.util.List;
import java.util.Map;

/** The log that a request names: topic, partition, directory and topic id. */
final class NamedLog {
    final Object tp;
    final Path directory;
    private final Broker broker;
    private final Object topicId;

    /** Throws ClassCastException, NullPointerException for what is no request. */
    NamedLog(Broker broker, Map request) throws Exception {
        this.broker = broker;
        tp = broker.topicPartition((String) request.get("topic"), ((Long) request.get("partition")).intValue());
        directory = Paths.get((String) request.get("directory"));
        topicId = request.get("topic_id");
    }

    /** How an answer names it, with why it was refused. */
    List refused(Refused no) throws Exception {
        Object[] row = {broker.topic(tp), Long.valueOf(broker.partition(tp)), no.outcome, no.getMessage()};
        return Arrays.asList(row);
    }

    /** The broker's object. */
    Object open() throws Exception {
        Object log = broker.log(tp);
        if (log == null) {
            // While the broker loads its logs, and after it has closed one: nothing says that the log is another one.
            throw Refused.later("no_log", "the broker has no log " + tp + " open");
        }
        return log;
    }

    /** Whether the log lies in the directory that the request names; not when that is gone, with a move or a deletion. */
    private boolean isThere(Object log) throws Exception {
        try {
            return broker.dir(log).toPath().toRealPath().equals(directory.toRealPath());
        } catch (NoSuchFileException error) {
            return false;
        }
    }

    /** That the broker has the log still, in this directory and with this topic id. Needs the lock. */
    void check(Object log) throws Exception {
        if (broker.log(tp) != log || !isThere(log)) {
            throw Refused.changed("another_log", "the broker has the log in " + broker.dir(log));
        }
        String id = broker.topicId(log);
        if (topicId != null && id != null && !topicId.equals(id)) {
            throw Refused.changed("another_log", "the topic id was " + topicId + ", is " + id);
        }
    }
}
