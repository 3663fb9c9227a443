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

    /** Not now. */
    static Refused busy(String reason) {
        return new Refused("busy", reason);
    }

    /** This broker is not one that the agent knows. */
    static Refused unknown(String reason) {
        return new Refused("unknown", reason);
    }
}
