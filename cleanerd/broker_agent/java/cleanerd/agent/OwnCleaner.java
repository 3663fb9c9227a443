package cleanerd.agent;

import java.util.LinkedHashMap;
import java.util.Map;

/** A cleaner request: how many threads of the broker's own cleaner have died, and which logs of a directory it has given up. */
final class OwnCleaner {
    private OwnCleaner() {
    }

    /** Without `dead_threads` where the cleaner is off. */
    static Map run(Broker broker, Map request) throws Exception {
        Map answer = new LinkedHashMap();
        answer.put("outcome", "cleaner");
        Object cleaner = broker.cleaner();
        answer.put("dead_threads", cleaner == null ? null : broker.deadThreads(cleaner));
        answer.put("uncleanable", cleaner == null ? null : broker.uncleanable(cleaner, (String) request.get("log_dir")));
        return answer;
    }
}
