/* One Llama block (Touvron et al. 2023) as a kernel in C: norm, rotary attention over a cache, swiglu.
 *
 * Must hold: no row reads a key of a later token, and every row is computed by the same operations in the same order,
 * whatever stands beside it. Must not: check anything. Pointers carry no shapes, so c_block.py has to have checked
 * them all before it calls.
 *
 * Compiled once for each dtype, with REAL as float or double; the squares of a norm and the angles are in double always.
 *
 * Arrays are dense, the last axis fastest. Matrices are [in, out], as in y = x W.
 */

#include <math.h>
#include <stdint.h>
#include <stdlib.h>

#ifndef REAL
#error "compile with -DREAL=float or -DREAL=double"
#endif

enum { NO_ROTARY, INTERLEAVED, HALF };

typedef struct {
    int64_t d_model, n_heads, n_kv_heads, d_head, d_ff, rotary;
    double rotary_base, norm_eps;
} Config;

typedef struct {
    const REAL *attention_gain, *query, *key, *value, *output;
    const REAL *feed_forward_gain, *gate, *up, *down;
} Weights;

/* y = x W for one row; the sum over the input features runs in their order. */
static void project(const REAL *x, const REAL *w, int64_t in, int64_t out, REAL *y)
{
    for (int64_t o = 0; o < out; o++)
        y[o] = 0;
    for (int64_t i = 0; i < in; i++)
        for (int64_t o = 0; o < out; o++)
            y[o] += x[i] * w[i * out + o];
}

/* x / sqrt(mean(x^2) + eps) * gain over the features of one token (Zhang and Sennrich 2019, equation 4). */
static void rms_norm(const REAL *x, const REAL *gain, int64_t width, double eps, REAL *y)
{
    double squares = 0; /* in float, large features overflow and long rows lose digits */
    for (int64_t i = 0; i < width; i++)
        squares += (double)x[i] * x[i];
    const double scale = 1 / sqrt(squares / width + eps);
    for (int64_t i = 0; i < width; i++)
        y[i] = (REAL)(x[i] * scale * gain[i]);
}

/* Turn the pairs of one head by position * base^(-2 i / d_head) radians (Su et al. 2021, equation 34). */
static void rotate(REAL *head, const Config *c, int64_t position)
{
    const int64_t half = c->d_head / 2;
    if (c->rotary == NO_ROTARY)
        return;
    for (int64_t i = 0; i < half; i++) {
        /* in double: far positions in float would be off by whole degrees */
        const double angle = position * pow(c->rotary_base, -2.0 * i / c->d_head);
        REAL *a = c->rotary == HALF ? head + i : head + 2 * i;
        REAL *b = c->rotary == HALF ? head + i + half : head + 2 * i + 1;
        const REAL cosine = (REAL)cos(angle), sine = (REAL)sin(angle), first = *a, second = *b;
        *a = first * cosine - second * sine;
        *b = first * sine + second * cosine;
    }
}

/* Softmax of the scores against keys 0 .. keys-1, applied to the values. The maximum is subtracted: no overflow. */
static void attend(const REAL *query, const REAL *key, const REAL *value, int64_t keys, int64_t d_head, REAL *scores,
                   REAL *mixed)
{
    const REAL scale = (REAL)sqrt((double)d_head);
    REAL largest = -INFINITY, total = 0;
    for (int64_t k = 0; k < keys; k++) {
        REAL score = 0;
        for (int64_t i = 0; i < d_head; i++)
            score += query[i] * key[k * d_head + i];
        scores[k] = score / scale;
        largest = scores[k] > largest ? scores[k] : largest;
    }
    for (int64_t k = 0; k < keys; k++) {
        scores[k] = (REAL)exp((double)(scores[k] - largest));
        total += scores[k];
    }
    for (int64_t i = 0; i < d_head; i++)
        mixed[i] = 0;
    for (int64_t k = 0; k < keys; k++)
        for (int64_t i = 0; i < d_head; i++)
            mixed[i] += scores[k] / total * value[k * d_head + i];
}

/* The next `tokens` tokens of `batch` sequences whose keys and values 0 .. past-1 are in the cache already.
 *
 * x, y: [batch, tokens, d_model]. key, value: [batch, n_kv_heads, past + tokens, d_head]; rows from `past` on are
 * written here. The first new token has position `offset + past`. Returns 0, or 1 where there is no memory.
 */
int block_forward(const Config *c, const Weights *w, const REAL *x, int64_t batch, int64_t tokens, int64_t past,
                  int64_t offset, REAL *key, REAL *value, REAL *y)
{
    const int64_t d = c->d_head, d_query = c->n_heads * d, d_key = c->n_kv_heads * d, all = past + tokens;
    const int64_t group = c->n_heads / c->n_kv_heads;
    REAL *room = malloc(sizeof(REAL) * (2 * c->d_model + 2 * d_query + 2 * d_key + 2 * c->d_ff + all));
    if (room == NULL)
        return 1;
    REAL *normed = room, *branch = normed + c->d_model, *query = branch + c->d_model, *mixed = query + d_query;
    REAL *new_key = mixed + d_query, *new_value = new_key + d_key;
    REAL *gate = new_value + d_key, *up = gate + c->d_ff, *scores = up + c->d_ff;

    for (int64_t b = 0; b < batch; b++)
        for (int64_t t = 0; t < tokens; t++) {
            const REAL *row = x + (b * tokens + t) * c->d_model;
            REAL *out = y + (b * tokens + t) * c->d_model;
            const int64_t position = offset + past + t;

            rms_norm(row, w->attention_gain, c->d_model, c->norm_eps, normed);
            project(normed, w->query, c->d_model, d_query, query);
            project(normed, w->key, c->d_model, d_key, new_key);
            project(normed, w->value, c->d_model, d_key, new_value);
            for (int64_t h = 0; h < c->n_kv_heads; h++) {
                const int64_t at = ((b * c->n_kv_heads + h) * all + past + t) * d;
                rotate(new_key + h * d, c, position);
                for (int64_t i = 0; i < d; i++) {
                    key[at + i] = new_key[h * d + i];
                    value[at + i] = new_value[h * d + i];
                }
            }
            for (int64_t h = 0; h < c->n_heads; h++) {
                const int64_t shared = (b * c->n_kv_heads + h / group) * all * d;
                rotate(query + h * d, c, position);
                attend(query + h * d, key + shared, value + shared, past + t + 1, d, scores, mixed + h * d);
            }
            project(mixed, w->output, d_query, c->d_model, branch);
            for (int64_t i = 0; i < c->d_model; i++)
                out[i] = row[i] + branch[i];

            rms_norm(out, w->feed_forward_gain, c->d_model, c->norm_eps, normed);
            project(normed, w->gate, c->d_model, c->d_ff, gate);
            project(normed, w->up, c->d_model, c->d_ff, up);
            for (int64_t i = 0; i < c->d_ff; i++)
                gate[i] = (REAL)(gate[i] / (1 + exp(-(double)gate[i]))) * up[i];
            project(gate, w->down, c->d_ff, c->d_model, branch);
            for (int64_t i = 0; i < c->d_model; i++)
                out[i] += branch[i];
        }
    free(room);
    return 0;
}
