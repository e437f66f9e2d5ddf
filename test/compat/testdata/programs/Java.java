// SPDX-License-Identifier: Apache-2.0

import java.nio.file.Files;
import java.nio.file.Path;
import java.security.MessageDigest;
import java.util.concurrent.Executors;

class Java {
    public static void main(String[] args) throws Exception {
        var pool = Executors.newFixedThreadPool(4);
        var sum = pool.submit(() -> 6 * 7);
        var file = Files.writeString(Files.createTempFile("a", "b"), "hello");
        var digest = MessageDigest.getInstance("SHA-256").digest(Files.readAllBytes(file));
        System.out.println(Files.readString(file) + " " + sum.get() + " " + Integer.toHexString(digest[0] & 0xff)
            + " " + javax.net.ssl.SSLContext.getDefault().getProtocol() + " " + System.getProperty("user.name"));
        pool.shutdown();
    }
}
