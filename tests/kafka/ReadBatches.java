import java.io.BufferedInputStream;
import java.io.BufferedOutputStream;
import java.io.ByteArrayOutputStream;
import java.io.DataInputStream;
import java.io.DataOutputStream;
import java.io.EOFException;
import java.io.FileInputStream;
import java.io.FileOutputStream;
import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.record.internal.MemoryRecords;
import org.apache.kafka.common.record.internal.MutableRecordBatch;
import org.apache.kafka.common.record.internal.Record;
import org.apache.kafka.common.utils.internals.BufferSupplier;
import org.apache.kafka.common.utils.internals.CloseableIterator;

/**
 * What a broker and its cleaner read of batches: {@code java -cp 'kafka/*' ReadBatches.java GIVEN FOUND}.
 *
 * GIVEN: {int32 size, a batch of any magic}*. FOUND, for each: int32 number of records and the records, or -1
 * and why it is refused. A record: int64 offset, int64 timestamp, key, value, int32 number of headers, their keys and values;
 * bytes are an int32 size (-1 for null), then the bytes.
 */
public final class ReadBatches {
    private final DataOutputStream out;

    private ReadBatches(DataOutputStream out) {
        this.out = out;
    }

    public static void main(String[] arguments) throws IOException {
        DataInputStream in = new DataInputStream(new BufferedInputStream(new FileInputStream(arguments[0])));
        try (DataOutputStream out = new DataOutputStream(new BufferedOutputStream(new FileOutputStream(arguments[1])))) {
            while (true) {
                byte[] batch;
                try {
                    batch = new byte[in.readInt()];
                } catch (EOFException end) {
                    return;
                }
                in.readFully(batch);
                answer(batch, out);
            }
        }
    }

    private static void answer(byte[] bytes, DataOutputStream out) throws IOException {
        ByteArrayOutputStream records = new ByteArrayOutputStream();
        int count = 0;
        try (BufferSupplier buffers = BufferSupplier.create()) {
            ReadBatches reader = new ReadBatches(new DataOutputStream(records));
            for (MutableRecordBatch batch : MemoryRecords.readableRecords(ByteBuffer.wrap(bytes)).batches()) {
                batch.ensureValid();
                try (CloseableIterator<Record> iterator = batch.streamingIterator(buffers)) {
                    for (; iterator.hasNext(); count++) {
                        reader.record(iterator.next());
                    }
                }
            }
        } catch (Exception | Error refused) {
            out.writeInt(-1);
            out.writeUTF(refused.toString());
            return;
        }
        out.writeInt(count);
        records.writeTo(out);
    }

    private void record(Record record) throws IOException {
        out.writeLong(record.offset());
        out.writeLong(record.timestamp());
        bytes(record.key());
        bytes(record.value());
        out.writeInt(record.headers().length);
        for (Header header : record.headers()) {
            bytes(ByteBuffer.wrap(header.key().getBytes(StandardCharsets.UTF_8)));
            bytes(header.value() == null ? null : ByteBuffer.wrap(header.value()));
        }
    }

    private void bytes(ByteBuffer bytes) throws IOException {
        if (bytes == null) {
            out.writeInt(-1);
            return;
        }
        byte[] copy = new byte[bytes.remaining()];
        bytes.duplicate().get(copy);
        out.writeInt(copy.length);
        out.write(copy);
    }
}
