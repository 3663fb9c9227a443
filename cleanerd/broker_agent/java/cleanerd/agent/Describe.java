package cleanerd.agent;

import java.io.File;
import java.nio.file.Files;
import java.nio.file.NoSuchFileException;
import java.nio.file.Path;
import java.nio.file.Paths;
import java.util.ArrayList;
import java.util.Iterator;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;

/**
 * A describe request: what the broker knows of its logs in one directory, or of some of them, in the order of their names.
 * An answer ends after PAGE_SIZE characters; `next` is the name to go on with, null at the end.
 */
final class Describe {
    private static final int PAGE_SIZE = 1 << 17;
    private static final int LOG_SIZE = 512;
    private static final int SEGMENT_SIZE = 24;
    private static final int SEGMENTS_MAX = 400000;

    private final Broker broker;
    private final Path logDir;
    private final List wanted;
    private final String from;
    private final List configs = new ArrayList(); // each once: most logs share theirs
    private final Map configNumbers = new LinkedHashMap();
    private int size;

    /** Throws ClassCastException, NullPointerException for what is no request. */
    Describe(Broker broker, Map request) {
        this.broker = broker;
        logDir = Paths.get((String) request.get("log_dir"));
        wanted = (List) request.get("logs");
        from = (String) request.get("from");
    }

    Map run() throws Exception {
        Object cleaner = broker.cleaner();
        Object checkpoints = cleaner == null ? null : broker.checkpoints(cleaner);
        List described = new ArrayList();
        String next = null;
        Iterator entries = logs().entrySet().iterator();
        while (entries.hasNext() && next == null) {
            Map.Entry entry = (Map.Entry) entries.next();
            if (size > PAGE_SIZE) {
                next = (String) entry.getKey();
            } else {
                try {
                    Map found = describe(entry.getValue(), cleaner, checkpoints);
                    if (found != null) {
                        described.add(found);
                    }
                } catch (NoSuchFileException error) {
                    continue; // it has just been deleted
                }
            }
        }
        Map answer = new LinkedHashMap();
        answer.put("outcome", "described");
        answer.put("logs", described);
        answer.put("configs", configs);
        answer.put("next", next);
        return answer;
    }

    /** Logs of the directory by name of their own. */
    private Map logs() throws Exception {
        List all = new ArrayList();
        if (wanted == null) {
            all = broker.allLogs();
        } else {
            for (Object one : wanted) {
                List pair = (List) one;
                Object tp = broker.topicPartition((String) pair.get(0), ((Long) pair.get(1)).intValue());
                all.add(broker.log(tp));
                all.add(broker.futureLog(tp));
            }
        }
        Path real = logDir.toRealPath();
        Map parents = new LinkedHashMap(); // a directory is looked at once
        Map found = new TreeMap();
        for (Object log : all) {
            if (log != null) {
                File dir = broker.dir(log);
                Object parent = parents.get(dir.getParentFile());
                if (parent == null) {
                    parent = dir.getParentFile().toPath().toRealPath();
                    parents.put(dir.getParentFile(), parent);
                }
                if (parent.equals(real) && (from == null || dir.getName().compareTo(from) >= 0)) {
                    found.put(dir.getName(), log);
                }
            }
        }
        return found;
    }

    /** null for a log that has just been closed. */
    private Map describe(Object log, Object cleaner, Object checkpoints) throws Exception {
        Map found = new LinkedHashMap();
        Object tp = broker.topicPartition(log);
        Object config;
        List segments;
        synchronized (broker.lock(log)) {
            segments = broker.segments(log);
            if (segments.isEmpty()) {
                return null;
            }
            config = broker.config(log);
            found.put("directory_inode", Files.getAttribute(broker.dir(log).toPath(), "unix:ino"));
            found.put("directory", broker.dir(log).getName());
            found.put("topic_id", broker.topicId(log));
            found.put("is_future", Boolean.valueOf(broker.isFuture(log)));
            found.put("log_start_offset", Long.valueOf(broker.logStartOffset(log)));
            found.put("recovery_point", Long.valueOf(broker.recoveryPoint(log)));
            found.put("last_stable_offset", Long.valueOf(broker.lastStableOffset(log)));
            found.put("high_watermark", Long.valueOf(broker.highWatermark(log)));
            found.put("log_end_offset", Long.valueOf(broker.logEndOffset(log)));
        }
        found.put("topic", broker.topic(tp));
        found.put("partition", Long.valueOf(broker.partition(tp)));
        found.put("first_dirty_offset", cleaner == null ? null : broker.checkpoint(checkpoints, tp));
        found.put("cleaning_state", cleaner == null ? null : broker.cleaningState(cleaner, tp));
        found.put("config", configNumber(config));
        found.put("segments", segments(segments));
        size += LOG_SIZE + segments.size() * SEGMENT_SIZE;
        return found;
    }

    /** Pairs of base offset and size. */
    private List segments(List segments) throws Exception {
        if (segments.size() > SEGMENTS_MAX) {
            throw Refused.changed("segments", "a log of " + segments.size() + " segments: at most " + SEGMENTS_MAX);
        }
        List found = new ArrayList(segments.size());
        for (Object segment : segments) {
            List pair = new ArrayList(2);
            pair.add(Long.valueOf(broker.baseOffset(segment)));
            pair.add(Long.valueOf(broker.size(segment)));
            found.add(pair);
        }
        return found;
    }

    private Long configNumber(Object config) throws Exception {
        Map shown = new LinkedHashMap();
        shown.put("values", broker.configValues(config));
        shown.put("overridden", new ArrayList(broker.overriddenConfigs(config)));
        Long number = (Long) configNumbers.get(shown);
        if (number == null) {
            number = Long.valueOf(configs.size());
            configNumbers.put(shown, number);
            configs.add(shown);
            size += shown.toString().length();
        }
        return number;
    }
}
