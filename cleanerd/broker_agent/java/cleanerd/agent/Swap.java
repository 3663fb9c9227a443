package cleanerd.agent;

import java.io.IOException;
import java.nio.channels.FileChannel;
import java.nio.file.Files;
import java.nio.file.NoSuchFileException;
import java.nio.file.Path;
import java.nio.file.StandardCopyOption;
import java.nio.file.StandardOpenOption;
import java.nio.file.attribute.FileTime;
import java.util.ArrayList;
import java.util.Collections;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;

/**
 * One swap request: groups of staged files take the place of their source segments in a running broker, then the first dirty
 * offset moves. The numbered steps stand in cleanerd/broker_agent/swap.py.
 */
final class Swap {
    private static final String[] KINDS = {".log", ".index", ".timeindex", ".txnindex"};

    private final Broker broker;
    private final NamedLog named;
    private final Object tp;
    private final Path directory;
    private final long roundEnd;
    private final Object checkpoint;
    private final boolean movesCheckpoint;
    private final List epochs;
    private final List groups;
    private final long deadline;
    private final List lockMicros = new ArrayList();

    /** Throws ClassCastException, NullPointerException for what is no request. */
    Swap(Broker broker, Map request) throws Exception {
        this.broker = broker;
        named = new NamedLog(broker, request);
        tp = named.tp;
        directory = named.directory;
        roundEnd = number(request, "round_end");
        checkpoint = request.get("checkpoint");
        movesCheckpoint = ((Boolean) request.get("moves_checkpoint")).booleanValue();
        epochs = (List) request.get("leader_epochs");
        groups = (List) request.get("groups");
        deadline = System.nanoTime() + number(request, "timeout_ms") * 1000000L;
    }

    /** What became of it; groups that were swapped before a refusal stay, as if the cleaning had been interrupted there. */
    Map run() throws Exception {
        Map answer;
        Object cleaner = broker.cleaner();
        try {
            swapAll(cleaner);
            answer = new LinkedHashMap();
            answer.put("outcome", "swapped");
        } catch (Throwable error) {
            answer = Failure.answer(error);
        }
        answer.put("lock_us", lockMicros); // of each group that was swapped
        answer.put("has_cleaner", Boolean.valueOf(cleaner != null));
        return answer;
    }

    private void swapAll(Object cleaner) throws Exception {
        Object log = named.open();
        if (cleaner != null) {
            Leases.pause(broker, cleaner, tp);
        }
        try {
            if (cleaner != null) {
                Long found = broker.checkpoint(broker.checkpoints(cleaner), tp);
                if (found == null ? checkpoint != null : !found.equals(checkpoint)) {
                    throw Refused.changed("first_dirty_offset", "the first dirty offset was " + checkpoint + ", is " + found);
                }
            }
            synchronized (broker.lock(log)) {
                checkLog(log);
                for (Object group : groups) {
                    sources(log, (Map) group);
                    checkStaged((Map) group);
                }
            }
            for (Object group : groups) {
                swap(log, (Map) group);
            }
            if (cleaner != null && movesCheckpoint) {
                moveCheckpoint(log, cleaner);
            }
        } finally {
            if (cleaner != null) {
                broker.resume(cleaner, tp);
            }
        }
    }

    /**
     * Kafka cleans up after a deletion and a truncation before or after this, but not in the middle: who deletes or cuts a log
     * takes its entry back at once, and does not wait for us. So the entry is taken away if the log is another one by now.
     */
    private void moveCheckpoint(Object log, Object cleaner) throws Exception {
        synchronized (broker.lock(log)) {
            checkLog(log);
        }
        broker.updateCheckpoint(cleaner, log, tp, Long.valueOf(roundEnd));
        try {
            synchronized (broker.lock(log)) {
                checkLog(log);
            }
        } catch (Refused no) {
            if (no.outcome.equals("changed")) { // else it has been closed since
                broker.updateCheckpoint(cleaner, log, tp, null);
                throw no;
            }
        }
    }

    private void swap(Object log, Map group) throws Exception {
        if (System.nanoTime() - deadline > 0) {
            throw Refused.busy("time_up", "the time is up");
        }
        long base = number(group, "base_offset");
        Files.delete(directory.resolve(name(base, ".manifest", ".cleanerd")));
        sync(directory);
        synchronized (broker.lock(log)) {
            // where a disk hangs we wait here, and not with what all others need
        }
        synchronized (broker.creationLock()) { // no copy of the log begins meanwhile
            synchronized (broker.lock(log)) {
                replace(log, group, base);
            }
        }
    }

    private void replace(Object log, Map group, long base) throws Exception {
        long began = System.nanoTime();
        if (began - deadline > 0) { // whoever asked waits no longer, and may have staged something else
            throw Refused.later("time_up", "the lock of the log came too late");
        }
        checkLog(log);
        List old = sources(log, group);
        checkStaged(group);
        Object created = open(log, group, base);
        try {
            broker.replaceSegments(log, Collections.singletonList(created), old);
        } catch (Throwable error) {
            if (Files.exists(directory.resolve(name(base, ".log", ".cleaned")))) { // it renames that first
                deleteCleaned(base);
                if (broker.isClosed(error)) {
                    throw Refused.later("broker_stops", "the broker stops: " + error.getMessage());
                }
                throw new IOException("the broker could not begin to replace segments: " + error, error);
            }
            broker.markOffline(log, "cleanerd: the segments of " + directory + " could not be replaced", error);
            throw new IOException("the broker failed while it replaced segments: " + error, error);
        }
        lockMicros.add(Long.valueOf((System.nanoTime() - began) / 1000));
    }

    /** The new segment, as `.cleaned`; after a failure there is none. */
    private Object open(Object log, Map group, long base) throws Exception {
        try {
            for (Object file : (List) group.get("staged")) {
                String kind = kind((List) file);
                move(base, kind, ".cleanerd", ".cleaned");
            }
            Path txnIndex = directory.resolve(name(base, ".txnindex", ".cleaned"));
            if (Files.size(directory.resolve(name(base, ".log", ".cleaned"))) == 0 && !Files.exists(txnIndex)) {
                Files.write(txnIndex, new byte[0]); // an old one would stay beside an empty log
            }
            return broker.openCleaned(log, base);
        } catch (Throwable error) {
            deleteCleaned(base);
            throw new IOException("the new segment " + base + " could not be opened: " + error, error);
        }
    }

    private void deleteCleaned(long base) throws IOException {
        for (String kind : KINDS) {
            Files.deleteIfExists(directory.resolve(name(base, kind, ".cleaned")));
        }
    }

    /** That this is the log that the cleaning was planned on, and that the broker has what it judged with. Needs the lock. */
    private void checkLog(Object log) throws Exception {
        named.check(log);
        broker.checkOpen(log);
        if (broker.futureLog(tp) != null) {
            throw Refused.changed("log_moves", "the broker moves the log to another directory");
        }
        if (!broker.cleanupPolicies(log).contains("compact")) {
            throw Refused.changed("cleanup_policy", "its cleanup.policy no longer contains compact");
        }
        boolean isThere = false;
        for (Object segment : broker.segments(log)) {
            isThere |= broker.baseOffset(segment) == roundEnd;
        }
        if (!isThere) {
            throw Refused.changed("segments", "segment " + roundEnd + ", which follows the cleaned range, is gone");
        }
        checkEpochs(log);
        long highWatermark = broker.highWatermark(log);
        long lastStableOffset = broker.lastStableOffset(log);
        if (roundEnd > Math.min(highWatermark, lastStableOffset)) {
            // A broker that has just started begins at the log start. A log that was cut has failed the checks above.
            throw Refused.later("high_watermark", "cleaned up to " + roundEnd + ", but the high watermark is " + highWatermark
                + " and the last stable offset " + lastStableOffset);
        }
    }

    /** As `policy.commit_plan.epochs_contradiction`: retention may have taken some from the front. */
    private void checkEpochs(Object log) throws Exception {
        Map found = broker.epochs(log, roundEnd);
        Map planned = new LinkedHashMap();
        for (Object pair : epochs) {
            if (((Long) ((List) pair).get(1)).longValue() < roundEnd) {
                planned.put(((List) pair).get(0), ((List) pair).get(1));
            }
        }
        Map expected = new LinkedHashMap(planned);
        if (!found.isEmpty() && !found.equals(planned)) {
            Long first = (Long) found.keySet().iterator().next();
            for (Object epoch : planned.keySet()) {
                if (((Long) epoch).longValue() < first.longValue()) {
                    expected.remove(epoch);
                }
            }
            Long start = (Long) expected.get(first);
            if (start != null && ((Long) found.get(first)).longValue() > start.longValue()) {
                expected.put(first, found.get(first));
            }
        }
        if (!found.equals(expected)) {
            throw Refused.changed("leader_epochs", "the leader epochs below " + roundEnd + " were " + planned + ", are " + found);
        }
    }

    /** The segments that a group replaces, which must be the files that were read. Needs the lock. */
    private List sources(Object log, Map group) throws Exception {
        long base = number(group, "base_offset");
        long next = number(group, "next_base_offset");
        Map planned = new LinkedHashMap();
        for (Object source : (List) group.get("sources")) {
            planned.put(Long.valueOf(number((Map) source, "base_offset")), source);
        }
        List old = new ArrayList();
        List found = new ArrayList();
        boolean isFollowed = false;
        Object active = broker.activeSegment(log);
        for (Object segment : broker.segments(log)) {
            long offset = broker.baseOffset(segment);
            isFollowed |= offset == next;
            if (offset >= base && offset < next) {
                if (segment == active) {
                    throw Refused.changed("segments", "segment " + offset + " is active");
                }
                old.add(segment);
                found.add(Long.valueOf(offset));
            }
        }
        if (!found.equals(new ArrayList(planned.keySet()))) {
            throw Refused.changed("segments", "the segments in the group were " + planned.keySet() + ", are " + found);
        }
        if (!isFollowed) {
            throw Refused.changed("segments", "segment " + next + ", which follows the group, is gone");
        }
        for (Object segment : old) {
            long offset = broker.baseOffset(segment);
            Map source = (Map) planned.get(Long.valueOf(offset));
            if (broker.size(segment) != number(source, "size_bytes")) {
                throw Refused.changed("segments", "segment " + offset + " had " + number(source, "size_bytes") + " bytes, has "
                    + broker.size(segment));
            }
            checkFile(name(offset, ".log", ""), source);
        }
        return old;
    }

    private void checkStaged(Map group) throws Exception {
        long base = number(group, "base_offset");
        for (Object file : (List) group.get("staged")) {
            String name = name(base, kind((List) file), ".cleanerd");
            long expected = ((Long) ((List) file).get(1)).longValue();
            try {
                if (Files.size(directory.resolve(name)) != expected) {
                    throw Refused.changed("files", name + " is not the staged file of " + expected + " bytes that was written");
                }
            } catch (NoSuchFileException error) {
                throw Refused.changed("files", name + " is gone");
            }
        }
        checkFile(name(base, ".log", ".cleanerd"), (Map) group.get("staged_log"));
    }

    /** Size, inode and time of modification, in ms. */
    private void checkFile(String name, Map planned) throws Exception {
        Path path = directory.resolve(name);
        try {
            long inode = ((Long) Files.getAttribute(path, "unix:ino")).longValue();
            long modified = ((FileTime) Files.getAttribute(path, "lastModifiedTime")).toMillis();
            long expected = number(planned, "mtime_ms");
            boolean isCoarse = modified == expected / 1000 * 1000; // Java 8 knows whole seconds
            if (inode != number(planned, "inode") || Files.size(path) != number(planned, "size_bytes")
                || !(modified == expected || isCoarse)) {
                throw Refused.changed("files", name + " is not the file that was read: other inode, size or time");
            }
        } catch (NoSuchFileException error) {
            throw Refused.changed("files", name + " is gone");
        }
    }

    private void move(long base, String kind, String from, String to) throws IOException {
        Path target = directory.resolve(name(base, kind, to));
        Files.move(directory.resolve(name(base, kind, from)), target, new StandardCopyOption[] {StandardCopyOption.ATOMIC_MOVE});
    }

    private static void sync(Path directory) throws IOException {
        FileChannel channel = FileChannel.open(directory, new StandardOpenOption[] {StandardOpenOption.READ});
        try {
            channel.force(true);
        } finally {
            channel.close();
        }
    }

    private static String kind(List file) throws Exception {
        String kind = (String) file.get(0);
        for (String known : KINDS) {
            if (known.equals(kind)) {
                return known;
            }
        }
        throw new IllegalArgumentException("no file of a segment: " + kind);
    }

    private static String name(long base, String kind, String suffix) {
        return String.format("%020d%s%s", new Object[] {Long.valueOf(base), kind, suffix});
    }

    private static long number(Map map, String key) {
        return ((Long) map.get(key)).longValue();
    }
}
