package cleanerd.agent;

import java.io.IOException;
import java.lang.reflect.InvocationTargetException;
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
        return frame(answer(reason));
    }

    /** The answer to a request that is none. */
    static Map answer(String reason) {
        return answer("failed", "other", reason);
    }

    /** The answer to a request that has ended with this. */
    static Map answer(Throwable error) {
        if (error instanceof Refused) {
            return answer(((Refused) error).outcome, ((Refused) error).cause, error.getMessage());
        }
        Throwable first = error; // of those that have led to it, or have been wrapped by reflection
        while (first.getCause() != null) {
            first = first.getCause();
        }
        String reason = (error instanceof InvocationTargetException ? first : error).toString();
        boolean isStorage = first instanceof IOException || first.getClass().getSimpleName().equals("KafkaStorageException");
        String cause = first instanceof OutOfMemoryError ? "out_of_memory" : isStorage ? "storage" : "other";
        return answer("failed", cause, reason);
    }

    private static Map answer(String outcome, String cause, String reason) {
        Map answer = new LinkedHashMap();
        answer.put("outcome", outcome);
        answer.put("cause", cause);
        answer.put("reason", reason.length() > REASON_MAX ? reason.substring(0, REASON_MAX) : reason);
        return answer;
    }

    /** Length as four bytes, the highest first, and JSON. */
    static byte[] frame(Map answer) throws Exception {
        byte[] json = Json.render(answer).getBytes("UTF-8");
        return ByteBuffer.allocate(4 + json.length).putInt(json.length).put(json).array();
    }
}
