package cleanerd.agent;

import java.lang.management.ManagementFactory;
import java.util.LinkedHashMap;
import java.util.Map;
import javax.management.MBeanServer;
import javax.management.ObjectName;

/** A request_queue request: how many requests of clients this broker has taken from its queue, and how long they waited there. */
final class RequestQueue {
    private static final String[] REQUESTS = {"Produce", "FetchConsumer"};

    private RequestQueue() {
    }

    /** `requests` and `waited_us` since the broker's start: Kafka's mean of each kind is that of all that there were. */
    static Map run() throws Exception {
        MBeanServer server = ManagementFactory.getPlatformMBeanServer();
        long requests = 0;
        double waitedMs = 0;
        for (String request : REQUESTS) {
            ObjectName name = new ObjectName("kafka.network:type=RequestMetrics,name=RequestQueueTimeMs,request=" + request);
            long count = ((Number) server.getAttribute(name, "Count")).longValue();
            requests += count;
            waitedMs += count * ((Number) server.getAttribute(name, "Mean")).doubleValue();
        }
        Map answer = new LinkedHashMap();
        answer.put("outcome", "request_queue");
        answer.put("requests", Long.valueOf(requests));
        answer.put("waited_us", Long.valueOf(Math.round(1000 * waitedMs)));
        return answer;
    }
}
