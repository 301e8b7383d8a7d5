package weir;

import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.io.InterruptedIOException;
import java.nio.charset.StandardCharsets;
import java.util.Iterator;
import java.util.UUID;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FSDataOutputStream;
import org.apache.hadoop.fs.FSDataOutputStreamBuilder;
import org.apache.hadoop.fs.FileAlreadyExistsException;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.Path;

/**
 * Delta's log in an object store that many processes write: the store itself says who was first (PUT with If-None-Match).
 *
 * Delta's own store for S3 knows only of writers in its own JVM, and can lose one of two commits that others make at once. A request that
 * is sent again because its answer got lost is refused by what it has itself written: the file bears its writer's mark, so that this is
 * told from a conflict.
 */
public class ConditionalLogStore extends io.delta.storage.HadoopFileSystemLogStore {

    private static final String MARK = "weir-written-by";
    private static final String UNDECIDED = "ConditionalRequestConflict";
    private static final int ATTEMPTS = 20;

    public ConditionalLogStore(Configuration conf) {
        super(conf);
    }

    public void write(Path path, Iterator actions, Boolean overwrite, Configuration conf) throws IOException {
        FileSystem fs = path.getFileSystem(conf);
        byte[] text = joined(actions);
        if (overwrite.booleanValue()) {
            send(fs.create(path, true), text);
            return;
        }
        for (int attempt = 1; !isCreated(fs, path, text); attempt++) {
            if (attempt == ATTEMPTS) {
                throw new IOException(path + ": the object store could not say in " + ATTEMPTS + " attempts who was first");
            }
            pause();
        }
    }

    /** False where another one is just being created, and the store cannot say yet who was first. */
    private static boolean isCreated(FileSystem fs, Path path, byte[] text) throws IOException {
        String mark = UUID.randomUUID().toString();
        FSDataOutputStreamBuilder builder = fs.createFile(path);
        builder.overwrite(false);
        builder.must("fs.option.create.conditional.overwrite", true);
        builder.must("fs.s3a.create.header." + MARK, mark);
        try {
            send((FSDataOutputStream) builder.build(), text);
            return true;
        } catch (FileAlreadyExistsException taken) {
            throw new java.nio.file.FileAlreadyExistsException(path.toString());
        } catch (IOException refused) {
            if (String.valueOf(refused.getMessage()).contains(UNDECIDED)) {
                return false;
            }
            // S3A's word for a precondition that did not hold; it is no public class of Hadoop's.
            if (!refused.getClass().getSimpleName().equals("RemoteFileChangedException")) {
                throw refused;
            }
            if (!mark.equals(markOf(fs, path))) {
                throw new java.nio.file.FileAlreadyExistsException(path.toString());
            }
            return true;
        }
    }

    public Boolean isPartialWriteVisible(Path path, Configuration conf) {
        return Boolean.FALSE;
    }

    private static byte[] joined(Iterator actions) throws IOException {
        ByteArrayOutputStream text = new ByteArrayOutputStream();
        while (actions.hasNext()) {
            text.write((((String) actions.next()) + "\n").getBytes(StandardCharsets.UTF_8));
        }
        return text.toByteArray();
    }

    private static void send(FSDataOutputStream stream, byte[] text) throws IOException {
        stream.write(text);
        stream.close();
    }

    private static void pause() throws IOException {
        try {
            Thread.sleep(50 + (long) (Math.random() * 450));
        } catch (InterruptedException stopped) {
            Thread.currentThread().interrupt();
            throw new InterruptedIOException("stopped while a commit was undecided");
        }
    }

    private static String markOf(FileSystem fs, Path path) throws IOException {
        byte[] found = fs.getXAttr(path, "header." + MARK);
        return found == null ? null : new String(found, StandardCharsets.UTF_8);
    }
}
