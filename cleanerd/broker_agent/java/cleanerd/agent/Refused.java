package cleanerd.agent;

/** The answer is no, and everything is as it was. `cause` is one of a few words, of which `swap.REFUSAL_CAUSES` is the list. */
final class Refused extends Exception {
    final String outcome;
    final String cause;

    private Refused(String outcome, String cause, String reason) {
        super(reason);
        this.outcome = outcome;
        this.cause = cause;
    }

    /** The log is not what the cleaning was planned on: it will never fit. */
    static Refused changed(String cause, String reason) {
        return new Refused("changed", cause, reason);
    }

    /** Not now, but within a second or two. */
    static Refused busy(String cause, String reason) {
        return new Refused("busy", cause, reason);
    }

    /** Not now. */
    static Refused later(String cause, String reason) {
        return new Refused("later", cause, reason);
    }

    /** Not now, for any log. */
    static Refused starting(String reason) {
        return new Refused("starting", "broker_starts", reason);
    }

    /** This broker is not one that the agent knows. */
    static Refused unknown(String reason) {
        return new Refused("unknown", "other", reason);
    }
}
