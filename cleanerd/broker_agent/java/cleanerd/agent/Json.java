package cleanerd.agent;

import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;

/** JSON with integers only: Map, List, String, Long, Boolean, null. */
final class Json {
    private static final int DEPTH_MAX = 16;
    private final String text;
    private int at;

    private Json(String text) {
        this.text = text;
    }

    /** Throws IllegalArgumentException. */
    static Object parse(String text) {
        Json json = new Json(text);
        Object value = json.value(0);
        json.skip();
        if (json.at != text.length()) {
            throw json.unexpected();
        }
        return value;
    }

    static String render(Object value) {
        StringBuilder out = new StringBuilder();
        render(value, out);
        return out.toString();
    }

    private static void render(Object value, StringBuilder out) {
        if (value instanceof Map) {
            String before = "{";
            for (Object entry : ((Map) value).entrySet()) {
                out.append(before);
                render(String.valueOf(((Map.Entry) entry).getKey()), out);
                out.append(':');
                render(((Map.Entry) entry).getValue(), out);
                before = ",";
            }
            out.append(((Map) value).isEmpty() ? "{}" : "}");
        } else if (value instanceof List) {
            String before = "";
            out.append('[');
            for (Object item : (List) value) {
                out.append(before);
                render(item, out);
                before = ",";
            }
            out.append(']');
        } else if (value instanceof String) {
            quote((String) value, out);
        } else {
            out.append(value);
        }
    }

    private static void quote(String value, StringBuilder out) {
        out.append('"');
        for (int i = 0; i < value.length(); i++) {
            char c = value.charAt(i);
            if (c == '"' || c == '\\') {
                out.append('\\').append(c);
            } else if (c < ' ' || c > '~') {
                out.append(String.format("\\u%04x", new Object[] {Integer.valueOf(c)}));
            } else {
                out.append(c);
            }
        }
        out.append('"');
    }

    private Object value(int depth) {
        if (depth > DEPTH_MAX) {
            throw unexpected();
        }
        char c = peek();
        if (c == '{') {
            return map(depth);
        }
        if (c == '[') {
            return list(depth);
        }
        if (c == '"') {
            return string();
        }
        int from = at;
        while (at < text.length() && "-0123456789abcdefghijklmnopqrstuvwxyz".indexOf(text.charAt(at)) >= 0) {
            at++;
        }
        String word = text.substring(from, at);
        if (word.equals("null")) {
            return null;
        }
        if (word.equals("true") || word.equals("false")) {
            return Boolean.valueOf(word);
        }
        return Long.valueOf(word);
    }

    private Map map(int depth) {
        Map found = new LinkedHashMap();
        expect('{');
        while (peek() != '}') {
            if (!found.isEmpty()) {
                expect(',');
            }
            String key = string();
            expect(':');
            found.put(key, value(depth + 1));
        }
        expect('}');
        return found;
    }

    private List list(int depth) {
        List found = new ArrayList();
        expect('[');
        while (peek() != ']') {
            if (!found.isEmpty()) {
                expect(',');
            }
            found.add(value(depth + 1));
        }
        expect(']');
        return found;
    }

    private String string() {
        StringBuilder found = new StringBuilder();
        expect('"');
        while (true) {
            char c = next();
            if (c == '"') {
                return found.toString();
            }
            if (c == '\\') {
                c = next();
                if (c == 'u') {
                    if (at + 4 > text.length()) {
                        throw unexpected();
                    }
                    c = (char) Integer.parseInt(text.substring(at, at + 4), 16);
                    at += 4;
                } else if ("\"\\/".indexOf(c) < 0) {
                    int control = "bfnrt".indexOf(c);
                    if (control < 0) {
                        throw unexpected();
                    }
                    c = "\b\f\n\r\t".charAt(control);
                }
            }
            found.append(c);
        }
    }

    private void skip() {
        while (at < text.length() && " \n\r\t".indexOf(text.charAt(at)) >= 0) {
            at++;
        }
    }

    private char peek() {
        skip();
        if (at >= text.length()) {
            throw unexpected();
        }
        return text.charAt(at);
    }

    private char next() {
        if (at >= text.length()) {
            throw unexpected();
        }
        return text.charAt(at++);
    }

    private void expect(char c) {
        if (peek() != c) {
            throw unexpected();
        }
        at++;
    }

    private IllegalArgumentException unexpected() {
        return new IllegalArgumentException("not JSON at character " + at);
    }
}
