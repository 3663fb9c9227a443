package cleanerd.agent;

import java.io.File;
import java.io.IOException;
import java.lang.management.ManagementFactory;
import java.lang.reflect.Constructor;
import java.lang.reflect.Field;
import java.lang.reflect.InvocationHandler;
import java.lang.reflect.Method;
import java.lang.reflect.Modifier;
import java.lang.reflect.Proxy;
import java.nio.channels.FileChannel;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import java.util.TreeSet;
import java.util.concurrent.locks.Lock;
import javax.management.ObjectName;

/**
 * The broker in whose JVM this runs, with everything that is ever called in it. `find` proves that all of it is there, with
 * these signatures, or refuses: nothing is looked for later.
 */
final class Broker {
    private static final Class[] NONE = new Class[0];
    private static final Object[] NO_ARGUMENTS = new Object[0];
    private static final int DEPTH_MAX = 4;
    private static final String NO_ID = "AAAAAAAAAAAAAAAAAAAAAA"; // in 2.8
    private static final String STORAGE = "org.apache.kafka.storage.internals.log.";
    private static final String SCALA = "kafka.log.";
    private static final String COMMON = "org.apache.kafka.common.";

    static final List MANAGERS = Arrays.asList(SCALA + "LogManager", STORAGE + "LogManager"); // the latter from 4.4

    private final String release;
    private final Object logManager;
    private final Containers containers;
    private final Constructor newTopicPartition;
    private final Method getLog, allLogs, liveLogDirs, getCleaner, topic, partition;
    private final Method dir, config, time, topicId, highWatermark, lastStableOffset, logSegments, activeSegment;
    private final Method topicPartition, isFuture, logStartOffset, logEndOffset, recoveryPoint, roll;
    private final Method leaderEpochCache, replaceSegments, epochEntries, markOffline;
    private final Method baseOffset, size, records, channel, open, getList, configValues;
    private final Method cleanerManager, cleaningState, abortAndPause, resume, allCheckpoints, updateCheckpoints;
    private final Method pausedCount, deadThreadCount, uncleanablePartitions;
    private final Field creationLock, logLock, managerLock, epoch, epochStart, logDirFailureChannel, cleanerConfig, enableCleaner, overriddenConfigs;
    private final Class storageException, lazyText, pausedState;
    private final boolean takesSwapFlag, takesLazyText;

    /** Throws Refused when this is no broker, or not one that is known. */
    static Broker find() throws Exception {
        Object manager = findLogManager();
        if (manager == null) {
            throw Refused.unknown("no LogManager is registered in this JVM: it is no broker, or has not started yet");
        }
        Shape shape = new Shape(manager.getClass().getClassLoader());
        Class version = shape.type(COMMON + "utils.AppInfoParser", COMMON + "utils.internals.AppInfoParser"); // the latter from 4.4
        Method getVersion = shape.method(version, String.class, "getVersion", NONE);
        String release = getVersion == null ? "of an unknown release" : (String) Shape.call(getVersion, null, NO_ARGUMENTS);
        Broker broker = new Broker(release, manager, shape);
        if (!shape.missing.isEmpty()) {
            throw Refused.unknown("Kafka " + release + " is not known to this agent, it has no " + shape.missing);
        }
        return broker;
    }

    private Broker(String release, Object logManager, Shape shape) {
        this.release = release;
        this.logManager = logManager;
        Class javaLog = shape.find(STORAGE + "UnifiedLog");
        boolean isScala = true;
        if (javaLog != null) {
            for (Method method : javaLog.getDeclaredMethods()) {
                isScala &= !method.getName().equals("replaceSegments"); // 4.0 has a class of that name with helpers only
            }
        }
        String family = isScala ? SCALA : STORAGE;
        containers = new Containers(shape, isScala);
        Class tp = shape.type(COMMON + "TopicPartition");
        Class clock = shape.type(COMMON + "utils.Time");
        Class log = shape.type(family + "UnifiedLog", SCALA + "Log"); // the latter in 2.8
        Class segment = shape.type(STORAGE + "LogSegment", SCALA + "LogSegment");
        Class logConfig = shape.type(STORAGE + "LogConfig", SCALA + "LogConfig");
        Class epochs = shape.type(
            "org.apache.kafka.storage.internals.epoch.LeaderEpochFileCache", "kafka.server.epoch.LeaderEpochFileCache");
        Class epochEntry = shape.type(STORAGE + "EpochEntry", "kafka.server.epoch.EpochEntry");
        Class failures = shape.type(STORAGE + "LogDirFailureChannel", "kafka.server.LogDirFailureChannel");
        Class cleaner = shape.type(family + "LogCleaner");
        Class manager = shape.type(family + "LogCleanerManager");
        newTopicPartition = constructor(shape, tp, new Class[] {String.class, int.class});
        getLog = shape.method(logManager.getClass(), Object.class, "getLog", new Class[] {tp, boolean.class});
        allLogs = shape.method(logManager.getClass(), Object.class, "allLogs", NONE);
        liveLogDirs = shape.method(logManager.getClass(), Object.class, "liveLogDirs", NONE);
        topic = shape.method(tp, String.class, "topic", NONE);
        partition = shape.method(tp, int.class, "partition", NONE);
        getCleaner = shape.method(logManager.getClass(), cleaner, "cleaner", NONE);

        Class settings = shape.type(STORAGE + "CleanerConfig", SCALA + "CleanerConfig");
        cleanerConfig = shape.field(logManager.getClass(), settings, "cleanerConfig");
        enableCleaner = shape.field(settings, boolean.class, "enableCleaner");
        storageException = shape.type(COMMON + "errors.KafkaStorageException");

        creationLock = shape.monitor(logManager.getClass(), "logCreationOrDeletionLock");
        logLock = shape.monitor(log, "lock");
        dir = shape.method(log, File.class, "dir", NONE);
        config = shape.method(log, logConfig, "config", NONE);
        time = shape.method(log, clock, "time", NONE);
        topicId = shape.method(log, Object.class, "topicId", NONE);
        highWatermark = shape.method(log, long.class, "highWatermark", NONE);
        lastStableOffset = shape.method(log, long.class, "lastStableOffset", NONE);
        logSegments = shape.method(log, Object.class, "logSegments", NONE);
        activeSegment = shape.method(log, segment, "activeSegment", NONE);
        topicPartition = shape.method(log, tp, "topicPartition", NONE);
        isFuture = shape.method(log, boolean.class, "isFuture", NONE);
        logStartOffset = shape.method(log, long.class, "logStartOffset", NONE);
        logEndOffset = shape.method(log, long.class, "logEndOffset", NONE);
        recoveryPoint = shape.method(log, long.class, "recoveryPoint", NONE);
        roll = shape.method(log, segment, "roll", new Class[] {containers.option});
        leaderEpochCache = shape.method(log, Object.class, "leaderEpochCache", NONE);
        logDirFailureChannel = shape.field(logManager.getClass(), failures, "logDirFailureChannel");
        takesSwapFlag = shape.has(log, "replaceSegments", containers.list, containers.list, boolean.class); // in 2.8
        Class[] lists = {containers.list, containers.list};
        Class[] listsAndFlag = {containers.list, containers.list, boolean.class};
        replaceSegments = shape.method(log, void.class, "replaceSegments", takesSwapFlag ? listsAndFlag : lists);
        epochEntries = shape.method(epochs, Object.class, "epochEntries", NONE);
        epoch = shape.field(epochEntry, int.class, "epoch");
        epochStart = shape.field(epochEntry, long.class, "startOffset");
        lazyText = shape.find("scala.Function0");
        takesLazyText = lazyText != null && shape.has(failures, "maybeAddOfflineLogDir", String.class, lazyText, IOException.class);
        Class text = takesLazyText ? lazyText : String.class; // of Scala up to 3.3
        markOffline = shape.method(
            failures, void.class, "maybeAddOfflineLogDir", new Class[] {String.class, text, IOException.class});

        baseOffset = shape.method(segment, long.class, "baseOffset", NONE);
        size = shape.method(segment, int.class, "size", NONE);
        records = shape.method(segment, Object.class, "log", NONE);
        Class file = records == null ? Void.class : records.getReturnType();
        channel = shape.method(file, FileChannel.class, "channel", NONE);
        open = shape.method(segment, segment, "open", new Class[] {
            File.class, long.class, logConfig, clock, boolean.class, int.class, boolean.class, String.class});
        getList = shape.method(logConfig, List.class, "getList", new Class[] {String.class});

        configValues = shape.method(logConfig, Map.class, "values", NONE);
        overriddenConfigs = shape.field(logConfig, Object.class, "overriddenConfigs");

        cleanerManager = shape.method(cleaner, manager, "cleanerManager", NONE);
        abortAndPause = shape.method(cleaner, void.class, "abortAndPauseCleaning", new Class[] {tp});
        resume = shape.method(cleaner, void.class, "resumeCleaning", new Class[] {containers.set});
        deadThreadCount = shape.method(cleaner, int.class, "deadThreadCount", NONE);
        uncleanablePartitions = shape.method(manager, Object.class, "uncleanablePartitions", new Class[] {String.class});
        managerLock = shape.field(manager, Lock.class, "lock");
        cleaningState = shape.method(manager, containers.option, "cleaningState", new Class[] {tp});
        pausedState = shape.type(family + (isScala ? "LogCleaningPaused" : "LogCleaningState$LogCleaningPaused"));
        pausedCount = shape.method(pausedState, int.class, "pausedCount", NONE);
        allCheckpoints = shape.method(manager, containers.map, "allCleanerCheckpoints", NONE);
        updateCheckpoints = shape.method(
            manager, void.class, "updateCheckpoints", new Class[] {File.class, containers.option, containers.option});
    }

    private static Constructor constructor(Shape shape, Class type, Class[] parameters) {
        try {
            return type.getConstructor(parameters);
        } catch (NoSuchMethodException error) {
            shape.missing.add(error.getMessage());
            return null;
        }
    }

    /** By a gauge that it has registered: so it is found whether the broker's cleaner is on or off. */
    private static Object findLogManager() throws Exception {
        Shape shape = new Shape(ClassLoader.getSystemClassLoader());
        Class metrics = shape.type("org.apache.kafka.server.metrics.KafkaYammerMetrics", "kafka.metrics.KafkaYammerMetrics");
        if (!shape.missing.isEmpty()) {
            return null;
        }
        Object registry = metrics.getMethod("defaultRegistry", NONE).invoke(null, NO_ARGUMENTS);
        Map all = (Map) registry.getClass().getMethod("allMetrics", NONE).invoke(registry, NO_ARGUMENTS);
        for (Object entry : all.entrySet()) {
            Object name = ((Map.Entry) entry).getKey();
            if ("LogManager".equals(name.getClass().getMethod("getType", NONE).invoke(name, NO_ARGUMENTS))) {
                Object found = captured(((Map.Entry) entry).getValue(), DEPTH_MAX);
                if (found != null) {
                    return found;
                }
            }
        }
        return null;
    }

    /** The LogManager that a gauge asks, in its fields. */
    private static Object captured(Object holder, int depth) throws Exception {
        if (holder == null || depth == 0 || MANAGERS.contains(holder.getClass().getName())) {
            return depth == 0 ? null : holder;
        }
        for (Class c = holder.getClass(); c != null && c != Object.class; c = c.getSuperclass()) {
            for (Field field : c.getDeclaredFields()) {
                if (Modifier.isStatic(field.getModifiers()) || field.getType().isPrimitive()) {
                    continue;
                }
                try {
                    field.setAccessible(true);
                } catch (RuntimeException error) {
                    continue; // of the JDK: no broker is in there
                }
                Object found = captured(field.get(holder), depth - 1);
                if (found != null) {
                    return found;
                }
            }
        }
        return null;
    }

    /** Log directories that work; null while there is no broker in this JVM that has them. */
    static Iterable logDirs() throws Exception {
        Object manager = findLogManager();
        if (manager == null) {
            return null;
        }
        Shape shape = new Shape(manager.getClass().getClassLoader());
        Method dirs = shape.method(manager.getClass(), Object.class, "liveLogDirs", NONE);
        Containers containers = new Containers(shape, false);
        if (!shape.missing.isEmpty()) {
            throw Refused.unknown("a broker that has no " + shape.missing);
        }
        return containers.copied(of(dirs, manager));
    }

    Map hello() throws Exception {
        Map answer = new LinkedHashMap();
        answer.put("outcome", "hello");
        answer.put("release", release);
        answer.put("collections", containers.isScala ? "scala" : "java");
        answer.put("capabilities", Conversation.REQUESTS);
        answer.put("node_id", nodeId());
        List dirs = new ArrayList();
        for (Object dir : containers.copied(of(liveLogDirs, logManager))) {
            dirs.add(realPath((File) dir));
        }
        answer.put("log_dirs", dirs);
        return answer;
    }

    /** What it has registered when it had started; null before that, or with several in this JVM. */
    private static Long nodeId() throws Exception {
        Set found = ManagementFactory.getPlatformMBeanServer().queryNames(new ObjectName("kafka.server:type=app-info,id=*"), null);
        return found.size() == 1 ? Long.valueOf(((ObjectName) found.iterator().next()).getKeyProperty("id")) : null;
    }

    /** One that has gone meanwhile as it is named. */
    private static String realPath(File dir) {
        try {
            return dir.toPath().toRealPath().toString();
        } catch (IOException error) {
            return dir.getPath();
        }
    }

    Object topicPartition(String topic, int partition) throws Exception {
        return newTopicPartition.newInstance(new Object[] {topic, Integer.valueOf(partition)});
    }

    /** The log of a partition, null for none. */
    Object log(Object tp) throws Exception {
        return containers.orNull(Shape.call(getLog, logManager, new Object[] {tp, Boolean.FALSE}));
    }

    /** The copy that the broker makes of a log in another of its directories, null for none. */
    Object futureLog(Object tp) throws Exception {
        return containers.orNull(Shape.call(getLog, logManager, new Object[] {tp, Boolean.TRUE}));
    }

    /** All logs that the broker has open, and the copies that it makes. */
    List allLogs() throws Exception {
        return containers.copied(of(allLogs, logManager));
    }

    Object topicPartition(Object log) throws Exception {
        return of(topicPartition, log);
    }

    String topic(Object tp) throws Exception {
        return (String) of(topic, tp);
    }

    int partition(Object tp) throws Exception {
        return ((Integer) of(partition, tp)).intValue();
    }

    /** The monitor under which the broker creates logs, also as copies of others, and puts a copy in the place of its log. */
    Object creationLock() throws Exception {
        return creationLock.get(logManager);
    }

    /** The monitor under which the broker changes the segments of a log. It comes after `creationLock`. */
    Object lock(Object log) throws Exception {
        return logLock.get(log);
    }

    File dir(Object log) throws Exception {
        return (File) of(dir, log);
    }

    /** In Kafka's form, null for none. */
    String topicId(Object log) throws Exception {
        Object found = containers.orNull(of(topicId, log));
        return found == null || found.toString().equals(NO_ID) ? null : found.toString();
    }

    boolean isFuture(Object log) throws Exception {
        return ((Boolean) of(isFuture, log)).booleanValue();
    }

    long logStartOffset(Object log) throws Exception {
        return ((Long) of(logStartOffset, log)).longValue();
    }

    long logEndOffset(Object log) throws Exception {
        return ((Long) of(logEndOffset, log)).longValue();
    }

    /** All below it is flushed. */
    long recoveryPoint(Object log) throws Exception {
        return ((Long) of(recoveryPoint, log)).longValue();
    }

    /** Closes the active segment; returns the new one. */
    Object roll(Object log) throws Exception {
        return Shape.call(roll, log, new Object[] {containers.option(null)});
    }

    Object config(Object log) throws Exception {
        return of(config, log);
    }

    /** Text by name: lists with commas, as Kafka writes them. */
    Map configValues(Object config) throws Exception {
        Map found = new TreeMap();
        for (Object entry : ((Map) of(configValues, config)).entrySet()) {
            Object value = ((Map.Entry) entry).getValue();
            if (value != null) {
                boolean isList = value instanceof List;
                found.put(((Map.Entry) entry).getKey(), isList ? String.join(",", (List) value) : String.valueOf(value));
            }
        }
        return found;
    }

    /** Names of those that the topic has of its own. */
    Set overriddenConfigs(Object config) throws Exception {
        return new TreeSet(containers.copied(overriddenConfigs.get(config)));
    }

    List cleanupPolicies(Object log) throws Exception {
        return (List) Shape.call(getList, of(config, log), new Object[] {"cleanup.policy"});
    }

    long highWatermark(Object log) throws Exception {
        return ((Long) of(highWatermark, log)).longValue();
    }

    long lastStableOffset(Object log) throws Exception {
        return ((Long) of(lastStableOffset, log)).longValue();
    }

    /** Ascending. */
    List segments(Object log) throws Exception {
        return containers.copied(of(logSegments, log));
    }

    Object activeSegment(Object log) throws Exception {
        return of(activeSegment, log);
    }

    long baseOffset(Object segment) throws Exception {
        return ((Long) of(baseOffset, segment)).longValue();
    }

    long size(Object segment) throws Exception {
        return ((Integer) of(size, segment)).longValue();
    }

    /**
     * That the broker has not closed the log, as it does when it stops: its other directories, and `.lock`, may be free
     * by then, and another broker may have them. Its own check fails only once memory maps are gone. Needs the lock.
     */
    void checkOpen(Object log) throws Exception {
        if (!((FileChannel) of(channel, of(records, activeSegment(log)))).isOpen()) {
            throw Refused.later("broker_stops", "the broker stops: it has closed the log");
        }
    }

    /** Start offset by leader epoch, of those that start below an offset. */
    Map epochs(Object log, long end) throws Exception {
        Map found = new LinkedHashMap();
        Object cache = containers.orNull(of(leaderEpochCache, log));
        if (cache != null) {
            for (Object entry : containers.copied(of(epochEntries, cache))) {
                if (epochStart.getLong(entry) < end) {
                    found.put(Long.valueOf(epoch.getInt(entry)), Long.valueOf(epochStart.getLong(entry)));
                }
            }
        }
        return found;
    }

    /** Opens the files of a segment that end in `.cleaned`. */
    Object openCleaned(Object log, long base) throws Exception {
        Object[] arguments = {
            dir(log), Long.valueOf(base), of(config, log), of(time, log), Boolean.TRUE, Integer.valueOf(0), Boolean.FALSE, ".cleaned"};
        return Shape.call(open, null, arguments);
    }

    void replaceSegments(Object log, List created, List old) throws Exception {
        Object[] lists = {containers.list(created), containers.list(old)};
        Shape.call(replaceSegments, log, takesSwapFlag ? new Object[] {lists[0], lists[1], Boolean.FALSE} : lists);
    }

    /** Whether an operation on a log was refused because the broker has closed it, as it does when it stops. */
    boolean isClosed(Throwable error) {
        return storageException.isInstance(error) && String.valueOf(error.getMessage()).endsWith("is already closed");
    }

    /**
     * What the broker's own cleaner does when it cannot finish what it has begun. A KafkaStorageException is the broker's
     * word that it has done so, or that it has closed the log to stop, and then nothing was begun.
     */
    void markOffline(Object log, final String reason, Throwable error) throws Exception {
        if (storageException.isInstance(error)) {
            return;
        }
        IOException failure = error instanceof IOException ? (IOException) error : new IOException(error);
        Object text = reason;
        if (takesLazyText) {
            text = Proxy.newProxyInstance(lazyText.getClassLoader(), new Class[] {lazyText}, new InvocationHandler() {
                public Object invoke(Object proxy, Method method, Object[] arguments) {
                    return reason;
                }
            });
        }
        Object[] arguments = {dir(log).getParent(), text, failure};
        Shape.call(markOffline, logDirFailureChannel.get(logManager), arguments);
    }

    /** The broker's cleaner, null where it is off. */
    Object cleaner() throws Exception {
        Object cleaner = of(getCleaner, logManager);
        if (cleaner == null && enableCleaner.getBoolean(cleanerConfig.get(logManager))) {
            throw Refused.starting("the broker is starting, or stopping");
        }
        return cleaner;
    }

    /**
     * Keeps the broker's cleaner from a log. Never waits: whoever is at work on the log comes first. `pauses`: how many of
     * them are known, and no work.
     */
    void pause(Object cleaner, Object tp, int pauses) throws Exception {
        Object manager = of(cleanerManager, cleaner);
        Lock lock = (Lock) managerLock.get(manager);
        lock.lock();
        try {
            Object state = containers.orNull(Shape.call(cleaningState, manager, new Object[] {tp}));
            boolean isPaused = pausedState.isInstance(state) && ((Integer) of(pausedCount, state)).intValue() == pauses;
            if (state != null && !isPaused) {
                throw Refused.busy("broker_at_work", "the broker is at work on the log: " + name(state));
            }
            Shape.call(abortAndPause, cleaner, new Object[] {tp});
        } finally {
            lock.unlock();
        }
    }

    void resume(Object cleaner, Object tp) throws Exception {
        Shape.call(resume, cleaner, new Object[] {containers.set(tp)});
    }

    /** What the cleaner, or one who keeps it away, is at with a log, in Kafka's words; null for nothing. */
    String cleaningState(Object cleaner, Object tp) throws Exception {
        Object state = containers.orNull(Shape.call(cleaningState, of(cleanerManager, cleaner), new Object[] {tp}));
        return state == null ? null : name(state);
    }

    Long deadThreads(Object cleaner) throws Exception {
        return Long.valueOf(((Integer) of(deadThreadCount, cleaner)).longValue());
    }

    /** Pairs of topic and partition of the logs in a directory that the cleaner passes over since it failed on them. */
    List uncleanable(Object cleaner, String logDir) throws Exception {
        List found = new ArrayList();
        for (Object dir : containers.copied(of(liveLogDirs, logManager))) {
            if (realPath((File) dir).equals(logDir)) { // the cleaner knows it as log.dirs has it, which may be a link
                Object[] named = {((File) dir).getPath()};
                for (Object tp : containers.copied(Shape.call(uncleanablePartitions, of(cleanerManager, cleaner), named))) {
                    List pair = new ArrayList(2);
                    pair.add(topic(tp));
                    pair.add(Long.valueOf(partition(tp)));
                    found.add(pair);
                }
            }
        }
        return found;
    }

    private static String name(Object state) {
        return state.getClass().getSimpleName().replace("$", "");
    }

    /** The broker's checkpoint files, as they are now. */
    Object checkpoints(Object cleaner) throws Exception {
        return of(allCheckpoints, of(cleanerManager, cleaner));
    }

    /** First dirty offset in these, null for none. */
    Long checkpoint(Object checkpoints, Object tp) throws Exception {
        return (Long) containers.get(checkpoints, tp);
    }

    /** Writes the first dirty offset of a log; null takes its entry away. */
    void updateCheckpoint(Object cleaner, Object log, Object tp, Long offset) throws Exception {
        Object entry = containers.option(offset == null ? null : containers.pair(tp, offset));
        Object gone = containers.option(offset == null ? tp : null);
        Object[] arguments = {dir(log).getParentFile(), entry, gone}; // as in log.dirs, which may be a link
        Shape.call(updateCheckpoints, of(cleanerManager, cleaner), arguments);
    }

    private static Object of(Method method, Object target) throws Exception {
        return Shape.call(method, target, NO_ARGUMENTS);
    }
}
