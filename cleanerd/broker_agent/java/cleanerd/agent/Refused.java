package cleanerd.agent;

/** The answer is no, and everything is as it was. */
final class Refused extends Exception {
    final String outcome;

    private Refused(String outcome, String reason) {
        super(reason);
        this.outcome = outcome;
    }

    /** The log is not what the cleaning was planned on: it will never fit. */
    static Refused changed(String reason) {
        return new Refused("changed", reason);
    }

    /** Not now, but within a second or two. */
    static Refused busy(String reason) {
        return new Refused("busy", reason);
    }

    /** Not now. */
    static Refused later(String reason) {
        return new Refused("later", reason);
    }

    /** Not now, for any log. */
    static Refused starting(String reason) {
        return new Refused("starting", reason);
    }

    /** This broker is not one that the agent knows. */
    static Refused unknown(String reason) {
        return new Refused("unknown", reason);
    }
}
