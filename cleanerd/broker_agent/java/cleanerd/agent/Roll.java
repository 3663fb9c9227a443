package cleanerd.agent;

import java.util.LinkedHashMap;
import java.util.Map;

/** A roll request: the broker closes the active segment of a log, with all that it does when one is full. */
final class Roll {
    private Roll() {
    }

    /** `active_base_offset`: of the segment that is active then. An empty one stays. */
    static Map run(Broker broker, NamedLog named) throws Exception {
        Object log = named.open();
        Map answer = new LinkedHashMap();
        synchronized (broker.lock(log)) {
            named.check(log);
            broker.checkOpen(log);
            Object active = broker.activeSegment(log);
            boolean isEmpty = broker.size(active) == 0;
            if (!isEmpty) {
                active = broker.roll(log);
            }
            answer.put("outcome", isEmpty ? "unchanged" : "rolled");
            answer.put("active_base_offset", Long.valueOf(broker.baseOffset(active)));
        }
        return answer;
    }
}
