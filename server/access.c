/* Owns the lists of keys, hosts and origins. Keeps no key in clear; refuses a key file with a line
 * that no header could hold. */
#include "access.h"

#include <arpa/inet.h>
#include <errno.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <stdio.h>
#include <string.h>

#include "base/str.h"

enum { DIGEST_BYTES = 32, MAX_KEYS = 4096, MAX_KEY_BYTES = 1024, MAX_NAMES = 256 };

typedef struct names {
    char **list;
    size_t n;
    bool any; /* "*" is among them */
} names;

struct sl_access {
    unsigned char (*digests)[DIGEST_BYTES];
    size_t n_keys, capacity;
    names hosts, origins;
    bool hosts_given, any_address;
};

static sl_status no_memory(sl_error *err)
{
    return sl_fail(err, SL_ERR_MEMORY, "out of memory for the lists of who may ask");
}

static void free_names(names *of)
{
    for (size_t i = 0; i < of->n; i++)
        sl_free(of->list[i]);
    sl_free(of->list);
}

static sl_status add_name(names *of, const char *name, sl_error *err)
{
    if (of->n == MAX_NAMES)
        return sl_fail(err, SL_ERR_LIMIT, "more than %d hosts or origins", MAX_NAMES);
    if (!of->list && !(of->list = sl_alloc_array(SL_MEM_GENERAL, MAX_NAMES, sizeof *of->list)))
        return no_memory(err);
    char *copy = sl_strndup(SL_MEM_GENERAL, name, strlen(name));
    if (!copy)
        return no_memory(err);
    of->list[of->n++] = copy;
    of->any = of->any || strcmp(name, "*") == 0;
    return SL_OK;
}

static bool digest_of(const char *key, size_t n, unsigned char digest[DIGEST_BYTES])
{
    unsigned size = 0;
    return EVP_Digest(key, n, digest, &size, EVP_sha256(), NULL) == 1 && size == DIGEST_BYTES;
}

static sl_status add_key(sl_access *access, const char *key, size_t n, const char *where,
                         sl_error *err)
{
    if (n == 0 || n > MAX_KEY_BYTES)
        return sl_fail(err, SL_ERR_ARGUMENT, "%s: a key has 1 to %d bytes, this one %zu", where,
                       MAX_KEY_BYTES, n);
    for (size_t i = 0; i < n; i++) {
        if (key[i] <= ' ' || key[i] >= 0x7f)
            return sl_fail(err, SL_ERR_ARGUMENT, "%s: a key holds a byte that is not visible ASCII",
                           where);
    }
    if (access->n_keys == MAX_KEYS)
        return sl_fail(err, SL_ERR_LIMIT, "%s: more than %d keys", where, MAX_KEYS);
    if (access->n_keys == access->capacity) {
        const size_t capacity = access->capacity ? access->capacity * 2 : 16;
        void *grown = sl_realloc(SL_MEM_GENERAL, access->digests, capacity * DIGEST_BYTES);
        if (!grown)
            return no_memory(err);
        access->digests = grown;
        access->capacity = capacity;
    }
    if (!digest_of(key, n, access->digests[access->n_keys]))
        return no_memory(err);
    access->n_keys++;
    return SL_OK;
}

static sl_status read_keys(sl_access *access, FILE *file, const char *path, sl_error *err)
{
    char line[MAX_KEY_BYTES + 3];
    const size_t n_before = access->n_keys;
    while (fgets(line, sizeof line, file)) {
        size_t n = strlen(line);
        if (n == sizeof line - 1 && line[n - 1] != '\n')
            return sl_fail(err, SL_ERR_LIMIT, "%s: a key has more than %d bytes", path,
                           MAX_KEY_BYTES);
        while (n > 0 && strchr(" \t\r\n", line[n - 1]))
            n--;
        if (n > 0 && line[0] != '#')
            SL_TRY(add_key(access, line, n, path, err));
    }
    if (ferror(file))
        return sl_fail(err, SL_ERR_IO, "%s: %s", path, strerror(errno));
    /* An empty file must not open the server to everyone. */
    if (access->n_keys == n_before)
        return sl_fail(err, SL_ERR_ARGUMENT, "%s: there is no key in it", path);
    return SL_OK;
}

static sl_status fill(sl_access *access, const sl_http_settings *settings, sl_error *err)
{
    for (size_t i = 0; i < settings->n_keys; i++)
        SL_TRY(add_key(access, settings->keys[i], strlen(settings->keys[i]), "keys", err));
    if (settings->key_file) {
        FILE *file = fopen(settings->key_file, "re");
        if (!file)
            return sl_fail(err, SL_ERR_IO, "%s: %s", settings->key_file, strerror(errno));
        const sl_status status = read_keys(access, file, settings->key_file, err);
        fclose(file);
        SL_TRY(status);
    }
    access->hosts_given = settings->n_hosts > 0;
    for (size_t i = 0; i < settings->n_hosts; i++)
        SL_TRY(add_name(&access->hosts, settings->hosts[i], err));
    if (!access->hosts_given)
        SL_TRY(add_name(&access->hosts, "localhost", err));
    for (size_t i = 0; i < settings->n_origins; i++)
        SL_TRY(add_name(&access->origins, settings->origins[i], err));
    return SL_OK;
}

sl_status sl_access_create(const sl_http_settings *settings, sl_access **out, sl_error *err)
{
    sl_access *access = sl_alloc_zero(SL_MEM_GENERAL, sizeof *access);
    if (!access)
        return no_memory(err);
    const sl_status status = fill(access, settings, err);
    if (status != SL_OK)
        sl_access_free(access);
    else
        *out = access;
    return status;
}

void sl_access_free(sl_access *access)
{
    if (!access)
        return;
    free_names(&access->hosts);
    free_names(&access->origins);
    sl_free(access->digests);
    sl_free(access);
}

/* Reads a host, without its brackets, as an IP address. Returns its family, or 0. */
static int address_of(sl_str host, struct in6_addr *v6, struct in_addr *v4)
{
    char text[INET6_ADDRSTRLEN];
    const bool brackets = host.n_bytes > 2 && host.data[0] == '[';
    const size_t n = brackets ? host.n_bytes - 2 : host.n_bytes;
    if (n == 0 || n >= sizeof text)
        return 0;
    memcpy(text, host.data + (brackets ? 1 : 0), n);
    text[n] = '\0';
    if (brackets)
        return inet_pton(AF_INET6, text, v6) == 1 ? AF_INET6 : 0;
    return inet_pton(AF_INET, text, v4) == 1 ? AF_INET : 0;
}

sl_status sl_access_bound(sl_access *access, const char *address, sl_error *err)
{
    if (access->hosts_given)
        return SL_OK;
    if (strcmp(address, "0.0.0.0") == 0 || strcmp(address, "[::]") == 0)
        access->any_address = true;
    return add_name(&access->hosts, address, err);
}

/* The key of the request; data is NULL when it has none. */
static sl_str presented(const sl_http_head *head)
{
    const sl_str authorization = sl_http_head_find(head, "authorization");
    static const char scheme[] = "bearer ";
    const size_t n = sizeof scheme - 1;
    if (authorization.data && authorization.n_bytes > n) {
        size_t same = 0;
        while (same < n && (authorization.data[same] | 0x20) == scheme[same])
            same++;
        sl_str key = {authorization.data + n, authorization.n_bytes - n};
        while (key.n_bytes > 0 && key.data[0] == ' ')
            key.data++, key.n_bytes--;
        if (same == n)
            return key;
    }
    return sl_http_head_find(head, "x-api-key");
}

bool sl_access_key(const sl_access *access, const sl_http_head *head, int *key)
{
    *key = -1;
    if (access->n_keys == 0)
        return true;
    const sl_str given = presented(head);
    unsigned char digest[DIGEST_BYTES];
    if (!given.data || given.n_bytes > MAX_KEY_BYTES ||
        !digest_of(given.data, given.n_bytes, digest))
        return false;
    /* Digests, all of them, to their ends: the time tells nothing of a key. */
    for (size_t i = 0; i < access->n_keys; i++) {
        const int differ = CRYPTO_memcmp(digest, access->digests[i], DIGEST_BYTES) != 0;
        *key = differ ? *key : (int)i;
    }
    return *key >= 0;
}

static bool same_host(sl_str host, const char *name)
{
    char text[256];
    if (host.n_bytes >= sizeof text)
        return false;
    memcpy(text, host.data, host.n_bytes);
    text[host.n_bytes] = '\0';
    return sl_same_name(text, name);
}

bool sl_access_host(const sl_access *access, sl_str host)
{
    if (access->hosts.any)
        return true;
    /* "localhost." is the same name. */
    if (host.n_bytes > 1 && host.data[host.n_bytes - 1] == '.')
        host.n_bytes--;
    for (size_t i = 0; i < access->hosts.n; i++) {
        if (same_host(host, access->hosts.list[i]))
            return true;
    }
    if (access->hosts_given)
        return false;
    struct in6_addr v6;
    struct in_addr v4;
    switch (address_of(host, &v6, &v4)) {
    case AF_INET:
        return access->any_address || (ntohl(v4.s_addr) >> 24) == 127;
    case AF_INET6:
        return access->any_address || IN6_IS_ADDR_LOOPBACK(&v6);
    default:
        return false;
    }
}

sl_origin sl_access_origin(const sl_access *access, const sl_http_head *head)
{
    const sl_str origin = sl_http_head_find(head, "origin");
    if (!origin.data)
        return SL_ORIGIN_NONE;
    for (size_t i = 0; i < access->origins.n; i++) {
        if (access->origins.any || same_host(origin, access->origins.list[i]))
            return SL_ORIGIN_ALLOWED;
    }
    /* Either scheme: a proxy may have taken TLS off. */
    const char *const schemes[] = {"https://", "http://"};
    for (size_t i = 0; i < SL_COUNTOF(schemes); i++) {
        const size_t n = strlen(schemes[i]);
        if (origin.n_bytes > n && memcmp(origin.data, schemes[i], n) == 0 &&
            sl_str_equal((sl_str){origin.data + n, origin.n_bytes - n}, head->host_port))
            return SL_ORIGIN_NONE;
    }
    return SL_ORIGIN_FOREIGN;
}
