/* Products and convolutions by oneDNN, for kernels that call them in TVM's parallel loops.

   Each call is one part of an operator, on one thread: oneDNN's own threads would compete with TVM's. Primitives are
   made once for each shape and thread, and freed when the kernel is unloaded. Where oneDNN has nothing but its reference
   implementation the call fails, and its result is NaN, which every comparison notices. */

#include <dnnl.h>
#include <math.h>
#include <omp.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

/* A shape: a product's has zeros from the fourth number on. */
enum { M, N, K, HEIGHT, WIDTH, ROWS, COLUMNS, DOWN, ACROSS, STEP_DOWN, STEP_ACROSS, TOP, LEFT, BOTTOM, RIGHT, NUMBERS };
enum { DATA, WEIGHTS, RESULT, SCRATCH, ARGUMENTS, BUCKETS = 64 };
static const int ARGUMENT[ARGUMENTS] = {DNNL_ARG_SRC, DNNL_ARG_WEIGHTS, DNNL_ARG_DST, DNNL_ARG_SCRATCHPAD};

struct step {
    int shape[NUMBERS];
    dnnl_primitive_t primitive; /* NULL where oneDNN has no fast one */
    dnnl_exec_arg_t arguments[ARGUMENTS];
    void *scratch;
    struct step *next, *made_before;
};

static pthread_mutex_t making = PTHREAD_MUTEX_INITIALIZER;
static dnnl_engine_t engine;
static dnnl_stream_t stream;
static struct step *all;
static __thread struct step *steps[BUCKETS];

static dnnl_memory_desc_t described(int rank, const dnnl_dim_t *extents, const dnnl_dim_t *strides) {
    dnnl_memory_desc_t made = NULL;
    dnnl_memory_desc_create_with_strides(&made, rank, extents, dnnl_f32, strides);
    return made;
}

static dnnl_status_t describe(dnnl_primitive_desc_t *found, const int *s, dnnl_primitive_attr_t attributes) {
    dnnl_memory_desc_t data, weights, result;
    dnnl_status_t status;
    if (s[HEIGHT]) {
        dnnl_dim_t of_data[] = {1, s[K], s[HEIGHT], s[WIDTH]}, of_weights[] = {s[N], s[K], s[DOWN], s[ACROSS]};
        dnnl_dim_t of_result[] = {1, s[N], s[ROWS], s[COLUMNS]};
        dnnl_dim_t in_data[] = {(dnnl_dim_t)s[HEIGHT] * s[WIDTH] * s[K], 1, (dnnl_dim_t)s[WIDTH] * s[K], s[K]};
        dnnl_dim_t in_weights[] = {1, s[N], (dnnl_dim_t)s[ACROSS] * s[K] * s[N], (dnnl_dim_t)s[K] * s[N]};
        dnnl_dim_t in_result[] = {(dnnl_dim_t)s[ROWS] * s[COLUMNS] * s[N], 1, (dnnl_dim_t)s[COLUMNS] * s[N], s[N]};
        dnnl_dim_t steps_of[] = {s[STEP_DOWN], s[STEP_ACROSS]}, dilation[] = {0, 0};
        dnnl_dim_t before[] = {s[TOP], s[LEFT]}, behind[] = {s[BOTTOM], s[RIGHT]};
        data = described(4, of_data, in_data);
        weights = described(4, of_weights, in_weights);
        result = described(4, of_result, in_result);
        status = dnnl_convolution_forward_primitive_desc_create(found, engine, dnnl_forward_inference,
                dnnl_convolution_direct, data, weights, NULL, result, steps_of, dilation, before, behind, attributes);
    } else {
        dnnl_dim_t of_data[] = {s[M], s[K]}, of_weights[] = {s[K], s[N]}, of_result[] = {s[M], s[N]};
        dnnl_dim_t in_data[] = {s[K], 1}, in_weights[] = {s[N], 1};
        data = described(2, of_data, in_data);
        weights = described(2, of_weights, in_weights);
        result = described(2, of_result, in_weights);
        status = dnnl_matmul_primitive_desc_create(found, engine, data, weights, NULL, result, attributes);
    }
    dnnl_memory_desc_destroy(data);
    dnnl_memory_desc_destroy(weights);
    dnnl_memory_desc_destroy(result);
    return status;
}

static int is_fast(const_dnnl_primitive_desc_t described) {
    const char *name = "ref";
    dnnl_primitive_desc_query(described, dnnl_query_impl_info_str, 0, &name);
    return strncmp(name, "ref", 3) != 0 && strncmp(name, "gemm:ref", 8) != 0;
}

static void make(struct step *made) {
    static const dnnl_query_t QUERIES[ARGUMENTS]
            = {dnnl_query_src_md, dnnl_query_weights_md, dnnl_query_dst_md, dnnl_query_scratchpad_md};
    dnnl_primitive_attr_t attributes = NULL;
    dnnl_primitive_desc_t found = NULL;
    if (!engine && (dnnl_engine_create(&engine, dnnl_cpu, 0) != dnnl_success
                           || dnnl_stream_create(&stream, engine, dnnl_stream_default_flags) != dnnl_success))
        return;
    dnnl_primitive_attr_create(&attributes);
    dnnl_primitive_attr_set_scratchpad_mode(attributes, dnnl_scratchpad_mode_user);
    if (describe(&found, made->shape, attributes) == dnnl_success && is_fast(found)) {
        size_t bytes = dnnl_memory_desc_get_size(dnnl_primitive_desc_query_md(found, dnnl_query_scratchpad_md, 0));
        int failed = bytes && posix_memalign(&made->scratch, 64, bytes);
        for (int at = 0; at < ARGUMENTS && !failed; at++) {
            made->arguments[at].arg = ARGUMENT[at];
            failed = dnnl_memory_create(&made->arguments[at].memory,
                             dnnl_primitive_desc_query_md(found, QUERIES[at], 0), engine,
                             at == SCRATCH ? made->scratch : DNNL_MEMORY_NONE)
                    != dnnl_success;
        }
        if (!failed) dnnl_primitive_create(&made->primitive, found);
    }
    dnnl_primitive_desc_destroy(found);
    dnnl_primitive_attr_destroy(attributes);
}

static struct step *step_of(const int *shape) {
    unsigned hash = 0;
    for (int at = 0; at < NUMBERS; at++) hash = hash * 31 + (unsigned)shape[at];
    struct step **bucket = &steps[hash % BUCKETS], *found = *bucket;
    while (found && memcmp(found->shape, shape, sizeof found->shape)) found = found->next;
    if (found || !(found = calloc(1, sizeof *found))) return found;
    memcpy(found->shape, shape, sizeof found->shape);
    pthread_mutex_lock(&making);
    make(found);
    found->made_before = all;
    all = found;
    pthread_mutex_unlock(&making);
    found->next = *bucket;
    return *bucket = found;
}

static int run(const int *shape, const float *data, const float *weights, float *result, size_t elements) {
    int threads = omp_get_max_threads(), done = 0;
    if (threads != 1) omp_set_num_threads(1); /* of this thread alone */
    struct step *step = step_of(shape);
    if (step && step->primitive) {
        dnnl_memory_set_data_handle(step->arguments[DATA].memory, (void *)data);
        dnnl_memory_set_data_handle(step->arguments[WEIGHTS].memory, (void *)weights);
        dnnl_memory_set_data_handle(step->arguments[RESULT].memory, result);
        done = dnnl_primitive_execute(step->primitive, stream, ARGUMENTS, step->arguments) == dnnl_success;
    }
    if (threads != 1) omp_set_num_threads(threads);
    for (size_t at = 0; !done && at < elements; at++) result[at] = NAN;
    return !done;
}

/* result (m, n) = data (m, k) times weights (k, n), all row by row. */
int fleet_tune_onednn_product(const float *data, const float *weights, float *result, int m, int n, int k) {
    int shape[NUMBERS] = {[M] = m, [N] = n, [K] = k};
    return run(shape, data, weights, result, (size_t)m * n);
}

/* Rows first to first + rows - 1 of the convolution of an image (height, width, k) with weights (down, across, k, n), as
   result (rows, columns, n). top, left: zeros before the image. */
int fleet_tune_onednn_convolution(const float *data, const float *weights, float *result, int first, int rows,
        int columns, int n, int height, int width, int k, int down, int across, int step_down, int step_across, int top,
        int left) {
    int begin = first * step_down - top, end = begin + (rows - 1) * step_down + down;
    int above = begin < 0 ? -begin : 0, below = end > height ? end - height : 0;
    int right = (columns - 1) * step_across + across - left - width;
    int shape[NUMBERS] = {[N] = n, [K] = k, [HEIGHT] = end - begin - above - below, [WIDTH] = width, [ROWS] = rows,
            [COLUMNS] = columns, [DOWN] = down, [ACROSS] = across, [STEP_DOWN] = step_down, [STEP_ACROSS] = step_across,
            [TOP] = above, [LEFT] = left, [BOTTOM] = below, [RIGHT] = right};
    return run(shape, data + (size_t)(begin + above) * width * k, weights, result, (size_t)rows * columns * n);
}

__attribute__((destructor)) static void free_all(void) {
    for (struct step *step = all, *before; step; step = before) {
        before = step->made_before;
        if (step->primitive) dnnl_primitive_destroy(step->primitive);
        for (int at = 0; at < ARGUMENTS; at++)
            if (step->arguments[at].memory) dnnl_memory_destroy(step->arguments[at].memory);
        free(step->scratch);
        free(step);
    }
    if (stream) dnnl_stream_destroy(stream);
    if (engine) dnnl_engine_destroy(engine);
}
