/* Stand-ins for the GnuTLS functions that libmicrohttpd.a calls. They all answer "not available".
 *
 * Debian's archive has TLS built in, and GnuTLS cannot be linked statically there: p11-kit, which it needs,
 * has no archive. The page is served without TLS (http.h, rule 4), so only the two functions of start and end
 * are called. The stand-ins are hidden: a library that is opened later and uses the true GnuTLS must not find
 * them. */
#include <stddef.h>

#define ABSENT(name)                                                                                         \
    __attribute__((visibility("hidden"))) int name(void);                                                    \
    int                                       name(void) { return -1; }

__attribute__((visibility("hidden"))) int         gnutls_global_init(void);
__attribute__((visibility("hidden"))) void        gnutls_global_deinit(void);
__attribute__((visibility("hidden"))) const char *gnutls_strerror(int error);
__attribute__((visibility("hidden"))) extern void *(*gnutls_malloc)(size_t n);

int         gnutls_global_init(void) { return 0; }
void        gnutls_global_deinit(void) {}
const char *gnutls_strerror(int error) { return "no TLS"; }
void *(*gnutls_malloc)(size_t n) = NULL;

ABSENT(gnutls_alpn_set_protocols)
ABSENT(gnutls_bye)
ABSENT(gnutls_certificate_allocate_credentials)
ABSENT(gnutls_certificate_free_credentials)
ABSENT(gnutls_certificate_server_set_request)
ABSENT(gnutls_certificate_set_dh_params)
ABSENT(gnutls_certificate_set_retrieve_function2)
ABSENT(gnutls_certificate_set_retrieve_function3)
ABSENT(gnutls_certificate_set_x509_key_mem)
ABSENT(gnutls_certificate_set_x509_key_mem2)
ABSENT(gnutls_certificate_set_x509_trust_mem)
ABSENT(gnutls_cipher_get)
ABSENT(gnutls_credentials_set)
ABSENT(gnutls_deinit)
ABSENT(gnutls_dh_params_deinit)
ABSENT(gnutls_dh_params_import_pkcs3)
ABSENT(gnutls_dh_params_init)
ABSENT(gnutls_handshake)
ABSENT(gnutls_init)
ABSENT(gnutls_priority_deinit)
ABSENT(gnutls_priority_init)
ABSENT(gnutls_priority_set)
ABSENT(gnutls_protocol_get_version)
ABSENT(gnutls_psk_allocate_server_credentials)
ABSENT(gnutls_psk_free_server_credentials)
ABSENT(gnutls_psk_set_server_credentials_function)
ABSENT(gnutls_record_check_pending)
ABSENT(gnutls_record_get_direction)
ABSENT(gnutls_record_recv)
ABSENT(gnutls_record_send)
ABSENT(gnutls_session_get_ptr)
ABSENT(gnutls_session_set_ptr)
ABSENT(gnutls_transport_set_int2)
