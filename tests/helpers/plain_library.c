/* The functions of devices/builds/libraries/onednn.c, written as plain loops: programs that call them can be built, run
   and checked where oneDNN is not installed. */

#include <stddef.h>

int fleet_tune_onednn_product(const float *data, const float *weights, float *result, int m, int n, int k) {
    for (int row = 0; row < m; row++)
        for (int column = 0; column < n; column++) {
            double sum = 0;
            for (int at = 0; at < k; at++) sum += (double)data[row * k + at] * weights[at * n + column];
            result[row * n + column] = sum;
        }
    return 0;
}

int fleet_tune_onednn_convolution(const float *data, const float *weights, float *result, int first, int rows,
        int columns, int n, int height, int width, int k, int down, int across, int step_down, int step_across, int top,
        int left) {
    for (int row = 0; row < rows; row++)
        for (int column = 0; column < columns; column++)
            for (int out = 0; out < n; out++) {
                double sum = 0;
                for (int y = 0; y < down; y++)
                    for (int x = 0; x < across; x++) {
                        int from_row = (first + row) * step_down - top + y, from = column * step_across - left + x;
                        if (from_row < 0 || from_row >= height || from < 0 || from >= width) continue;
                        for (int at = 0; at < k; at++)
                            sum += (double)data[((size_t)from_row * width + from) * k + at]
                                    * weights[(((size_t)y * across + x) * k + at) * n + out];
                    }
                result[((size_t)row * columns + column) * n + out] = sum;
            }
    return 0;
}
