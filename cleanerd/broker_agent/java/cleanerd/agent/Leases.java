package cleanerd.agent;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.HashSet;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;

/**
 * Logs from which the broker's cleaner is kept until a time, each a pause of its own in Kafka's count of them. A lease request
 * names all logs of a holder: they are paused from then on, or still, and whatever else it had goes on. What is not renewed
 * goes on by itself: the thread that sees to that lives as long as there is a lease, whether anybody is attached or not.
 */
final class Leases implements Runnable {
    private static final long LEASE_MAX_MS = 600000;
    private static final long BUSY_NANOS = 500000000L;
    private static final long BUSY_PAUSE_MS = 20;
    private static final long LOOK_MS = 200;
    private static final Map HELD = new HashMap(); // Long, in nanoseconds, by holder and TopicPartition
    private static boolean isWatched;

    private final Broker broker;

    private Leases(Broker broker) {
        this.broker = broker;
    }

    /**
     * `refused`: topic, partition, outcome and reason of each log that was not paused. The broker's cleaner takes every log for
     * a moment, again and again: that is waited for.
     */
    static Map run(Broker broker, Map request) throws Exception {
        Object cleaner = broker.cleaner();
        String holder = (String) request.get("holder");
        long ms = ((Long) request.get("lease_ms")).longValue();
        if (holder == null || ms <= 0 || ms > LEASE_MAX_MS) {
            throw new IllegalArgumentException("a lease of " + ms + " ms for " + holder + ": at most " + LEASE_MAX_MS + " ms");
        }
        long deadline = System.nanoTime() + BUSY_NANOS;
        List refused = new ArrayList();
        while (cleaner != null) {
            refused.clear();
            List allowed = allowed(broker, (List) request.get("logs"), refused);
            boolean isBusy = lease(broker, cleaner, holder, ms, allowed, refused);
            if (!isBusy || System.nanoTime() - deadline > 0) {
                break;
            }
            Thread.sleep(BUSY_PAUSE_MS);
        }
        Map answer = new LinkedHashMap();
        answer.put("outcome", "leased");
        answer.put("refused", refused);
        answer.put("has_cleaner", Boolean.valueOf(cleaner != null));
        return answer;
    }

    /** The logs that are what the request names. Without the monitor: the lock of one whose disk hangs is not to be had. */
    private static List allowed(Broker broker, List logs, List refused) throws Exception {
        List found = new ArrayList();
        for (Object log : logs) {
            NamedLog named = new NamedLog(broker, (Map) log);
            try {
                check(broker, named);
                found.add(named);
            } catch (Refused no) {
                refused.add(named.refused(no));
            }
        }
        return found;
    }

    /** Whether a log was not paused only because the broker is at work on it. */
    private static synchronized boolean lease(
            Broker broker, Object cleaner, String holder, long ms, List logs, List refused) throws Exception {
        try {
            return tryLease(broker, cleaner, holder, ms, logs, refused);
        } finally {
            watch(broker);
        }
    }

    /** Without a thread that ends them there are no leases. */
    private static void watch(Broker broker) {
        if (!HELD.isEmpty() && !isWatched) {
            try {
                Thread thread = new Thread(new Leases(broker), "cleanerd-agent-leases");
                thread.setDaemon(true);
                thread.start();
                isWatched = true;
            } finally {
                for (Object key : isWatched ? new ArrayList() : new ArrayList(HELD.keySet())) {
                    release(broker, (List) key);
                }
            }
        }
    }

    private static boolean tryLease(
            Broker broker, Object cleaner, String holder, long ms, List logs, List refused) throws Exception {
        boolean isBusy = false;
        Set granted = new HashSet();
        for (Object one : logs) {
            NamedLog named = (NamedLog) one;
            List key = Arrays.asList(new Object[] {holder, named.tp});
            try {
                if (!HELD.containsKey(key)) {
                    pause(broker, cleaner, named.tp);
                }
                HELD.put(key, Long.valueOf(System.nanoTime() + ms * 1000000L));
                granted.add(key);
            } catch (Refused no) {
                isBusy |= no.outcome.equals("busy");
                refused.add(named.refused(no));
            }
        }
        for (Object key : new ArrayList(HELD.keySet())) {
            if (((List) key).get(0).equals(holder) && !granted.contains(key)) {
                release(broker, (List) key);
            }
        }
        return isBusy;
    }

    private static void check(Broker broker, NamedLog named) throws Exception {
        Object log = named.open();
        synchronized (broker.lock(log)) {
            named.check(log);
        }
        List policies = broker.cleanupPolicies(log);
        if (!policies.contains("compact")) {
            throw Refused.changed("cleanup_policy", "its cleanup.policy does not contain compact");
        }
        if (policies.contains("delete")) {
            throw Refused.changed("cleanup_policy", "its cleanup.policy contains delete: the broker's cleaner sees to its retention, too");
        }
    }

    /** Keeps the broker's cleaner from a log that nobody is at work on, and nobody has paused but those who have a lease. */
    static synchronized void pause(Broker broker, Object cleaner, Object tp) throws Exception {
        int leases = 0;
        for (Object key : HELD.keySet()) {
            leases += ((List) key).get(1).equals(tp) ? 1 : 0;
        }
        broker.pause(cleaner, tp, leases);
    }

    private static void release(Broker broker, List key) {
        HELD.remove(key);
        try {
            Object cleaner = broker.cleaner();
            if (cleaner != null) {
                broker.resume(cleaner, key.get(1));
            }
        } catch (Throwable error) {
            // the broker stops, or the log is gone: nothing is paused any more
        }
    }

    public void run() {
        try {
            while (releaseExpired(broker)) {
                Thread.sleep(LOOK_MS);
            }
        } catch (Throwable error) {
            end();
        }
    }

    /** Whether any lease is left: without one the thread ends. */
    private static synchronized boolean releaseExpired(Broker broker) {
        for (Object entry : new ArrayList(HELD.entrySet())) {
            long expires = ((Long) ((Map.Entry) entry).getValue()).longValue();
            if (System.nanoTime() - expires >= 0) {
                release(broker, (List) ((Map.Entry) entry).getKey());
            }
        }
        isWatched = !HELD.isEmpty();
        return isWatched;
    }

    private static synchronized void end() {
        isWatched = false;
    }
}
