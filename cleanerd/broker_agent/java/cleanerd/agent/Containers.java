package cleanerd.agent;

import java.lang.reflect.Constructor;
import java.lang.reflect.Method;
import java.util.AbstractMap;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;

/** The collections that a broker's cleaner and logs speak: of Scala up to Kafka 4.0, of Java from 4.1. */
final class Containers {
    final boolean isScala;
    final Class list;
    final Class set;
    final Class option;
    final Class map;
    private Method asScala;
    private Method toSeq;
    private Method mapGet;
    private Method asJava;
    private Method optionIsEmpty;
    private Method optionGet;
    private Method optionApply;
    private Constructor pair;

    Containers(Shape shape, boolean isScala) {
        this.isScala = isScala;
        scalaOption(shape); // LogManager has it everywhere, and Iterable
        Class converters = shape.type("scala.jdk.javaapi.CollectionConverters");
        Class scalaIterable = shape.type("scala.collection.Iterable");
        asJava = shape.method(converters, Iterable.class, "asJava", new Class[] {scalaIterable});
        if (isScala) {
            list = shape.type("scala.collection.Seq");
            set = scalaIterable;
            option = optionGet == null ? Void.class : optionGet.getDeclaringClass();
            map = shape.type("scala.collection.Map");
            Class buffer = shape.type("scala.collection.mutable.Buffer");
            asScala = shape.method(converters, buffer, "asScala", new Class[] {List.class});
            try {
                toSeq = scalaIterable.getMethod("toSeq", new Class[0]);
                mapGet = map.getMethod("get", new Class[] {Object.class});
                pair = shape.type("scala.Tuple2").getConstructor(new Class[] {Object.class, Object.class});
            } catch (NoSuchMethodException error) {
                shape.missing.add(error.getMessage());
            }
        } else {
            list = List.class;
            set = Set.class;
            option = Optional.class;
            map = Map.class;
        }
    }

    private void scalaOption(Shape shape) {
        Class type = shape.type("scala.Option");
        optionIsEmpty = shape.method(type, boolean.class, "isEmpty", new Class[0]);
        optionApply = shape.method(type, type, "apply", new Class[] {Object.class});
        try {
            optionGet = type.getMethod("get", new Class[0]);
        } catch (NoSuchMethodException error) {
            shape.missing.add(error.getMessage());
        }
    }

    Object list(List values) throws Exception {
        return isScala ? Shape.call(toSeq, Shape.call(asScala, null, new Object[] {values}), new Object[0]) : values;
    }

    /** The elements of an Iterable, of Scala or Java. */
    List copied(Object values) throws Exception {
        Object iterable = values instanceof Iterable ? values : Shape.call(asJava, null, new Object[] {values});
        List found = new ArrayList();
        for (Object value : (Iterable) iterable) {
            found.add(value);
        }
        return found;
    }

    Object set(Object value) throws Exception {
        return isScala ? list(Collections.singletonList(value)) : Collections.singleton(value);
    }

    Object option(Object value) throws Exception {
        return isScala ? Shape.call(optionApply, null, new Object[] {value}) : Optional.ofNullable(value);
    }

    Object pair(Object first, Object second) throws Exception {
        return isScala ? pair.newInstance(new Object[] {first, second}) : new AbstractMap.SimpleImmutableEntry(first, second);
    }

    /** The value of a key, null for none. */
    Object get(Object map, Object key) throws Exception {
        return isScala ? orNull(Shape.call(mapGet, map, new Object[] {key})) : ((Map) map).get(key);
    }

    /** What an Option or Optional holds, null for nothing; any other object as it is. */
    Object orNull(Object value) throws Exception {
        if (value instanceof Optional) {
            return ((Optional) value).orElse(null);
        }
        if (!optionGet.getDeclaringClass().isInstance(value)) {
            return value;
        }
        boolean isEmpty = ((Boolean) Shape.call(optionIsEmpty, value, new Object[0])).booleanValue();
        return isEmpty ? null : Shape.call(optionGet, value, new Object[0]);
    }
}
