package cleanerd.agent;

import java.lang.reflect.AccessibleObject;
import java.lang.reflect.Field;
import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Method;
import java.util.ArrayList;
import java.util.List;

/** Looks for classes, fields and methods of a broker, and keeps a list of what is missing. */
final class Shape {
    final List missing = new ArrayList(); // String
    private final ClassLoader loader;

    Shape(ClassLoader loader) {
        this.loader = loader;
    }

    /** null if there is none, which may be right. */
    Class find(String name) {
        try {
            return Class.forName(name, false, loader);
        } catch (ClassNotFoundException error) {
            return null;
        }
    }

    /** The first of these that there is: classes have moved between releases. */
    Class type(String... names) {
        for (String name : names) {
            Class found = find(name);
            if (found != null) {
                return found;
            }
        }
        missing.add(String.join(" or ", names));
        return Void.class;
    }

    boolean has(Class owner, String name, Class... parameters) {
        try {
            return owner.getDeclaredMethod(name, parameters) != null;
        } catch (NoSuchMethodException error) {
            return false;
        }
    }

    /** A method, also of a superclass; `returned`: a type that its value has. */
    Method method(Class owner, Class returned, String name, Class[] parameters) {
        for (Class c = owner; c != null; c = c.getSuperclass()) {
            try {
                Method found = c.getDeclaredMethod(name, parameters);
                if (returned.isAssignableFrom(found.getReturnType())) {
                    return (Method) opened(found);
                }
            } catch (NoSuchMethodException error) {
                // its superclass may have it
            }
        }
        for (Class c : owner.getInterfaces()) {
            try {
                return c.getMethod(name, parameters);
            } catch (NoSuchMethodException error) {
                // another one may have it
            }
        }
        StringBuilder signature = new StringBuilder(returned.getName() + " " + owner.getName() + "." + name + "(");
        for (int i = 0; i < parameters.length; i++) {
            signature.append(i == 0 ? "" : ", ").append(parameters[i].getName());
        }
        missing.add(signature.append(")").toString());
        return null;
    }

    Field field(Class owner, Class type, String name) {
        try {
            Field found = owner.getDeclaredField(name);
            if (type.isAssignableFrom(found.getType())) {
                return (Field) opened(found);
            }
        } catch (NoSuchFieldException error) {
            // reported as any other
        }
        missing.add(type.getName() + " " + owner.getName() + "." + name);
        return null;
    }

    /** A field with a plain object: to synchronize on a Lock would keep nobody away. */
    Field monitor(Class owner, String name) {
        Field found = field(owner, Object.class, name);
        if (found != null && found.getType() != Object.class) {
            missing.add("monitor " + owner.getName() + "." + name);
        }
        return found;
    }

    private AccessibleObject opened(AccessibleObject found) {
        try {
            found.setAccessible(true);
        } catch (RuntimeException error) {
            missing.add(found + " (" + error + ")");
        }
        return found;
    }

    /** Calls a method; what it throws is thrown as it is. */
    static Object call(Method method, Object target, Object[] arguments) throws Exception {
        try {
            return method.invoke(target, arguments);
        } catch (InvocationTargetException error) {
            Throwable cause = error.getCause();
            if (cause instanceof Error) {
                throw (Error) cause;
            }
            throw (Exception) cause;
        }
    }
}
