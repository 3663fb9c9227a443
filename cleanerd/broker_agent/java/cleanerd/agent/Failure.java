package cleanerd.agent;

import java.nio.ByteBuffer;
import java.util.LinkedHashMap;
import java.util.Map;

/** What went wrong, as an answer. */
final class Failure {
    private static final int REASON_MAX = 2000;

    private Failure() {
    }

    /** A whole frame. */
    static byte[] frame(String reason) throws Exception {
        return frame(answer("failed", reason));
    }

    /** The answer to a request. */
    static Map answer(String outcome, String reason) {
        Map answer = new LinkedHashMap();
        answer.put("outcome", outcome);
        answer.put("reason", reason.length() > REASON_MAX ? reason.substring(0, REASON_MAX) : reason);
        return answer;
    }

    /** Length as four bytes, the highest first, and JSON. */
    static byte[] frame(Map answer) throws Exception {
        byte[] json = Json.render(answer).getBytes("UTF-8");
        return ByteBuffer.allocate(4 + json.length).putInt(json.length).put(json).array();
    }
}
