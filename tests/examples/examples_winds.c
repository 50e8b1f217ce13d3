/* For examples_winds.sh and examples_relief.sh: globes by hand, a small file of winds, and one of heights:
 * examples_winds WINDS TURNED HEIGHTS writes the winds twice, the second time with their columns turned, and prints
 * what needs no training, in plain loops: the RMSE of persistence and of climatology one month ahead, and that of
 * heights between every fourth point. */
#include "examples/planet.h"
#include "tests/test.h"

#include <math.h>
#include <netcdf.h>

enum { T = 24, H = 9, W = 16, PLANE = H * W, PERIOD = 4, TRAINED = 16 };
static float wind[2][T][H][W];

static bool is_land(int64_t row, int64_t column)
{
    return row > 2 && row < 6 && column > 4 && column < 9;
}

static void make_winds(void)
{
    for (int c = 0; c < 2; c++)
        for (int t = 0; t < T; t++)
            for (int r = 0; r < H; r++)
                for (int x = 0; x < W; x++) {
                    const double angle = 2 * acos(-1.0) * (x - 0.7 * t + c) / W;
                    const double year = cos(2 * acos(-1.0) * t / PERIOD),
                                 noise = (c * 5 + t * 31 + r * 17 + x * 7) % 23;
                    wind[c][t][r][x] = (float)(3 * year + 2 * sin(angle) * cos(0.4 * (r - 4)) + noise / 23);
                }
}

static void write_winds(const char *path, int64_t turn)
{
    static const char *const names[] = {"UWND", "VWND"};
    const float missing = 1e20f;
    double rows[H];
    int f, dim[3], v[2], lat;
    int wrong = nc_create(path, NC_CLOBBER, &f);
    wrong += nc_def_dim(f, "TIME", NC_UNLIMITED, &dim[0]) + nc_def_dim(f, "LAT", H, &dim[1]) +
             nc_def_dim(f, "LON", W, &dim[2]) + nc_def_var(f, "LAT", NC_DOUBLE, 1, &dim[1], &lat);
    for (int c = 0; c < 2; c++)
        wrong += nc_def_var(f, names[c], NC_FLOAT, 3, dim, &v[c]) +
                 nc_put_att_float(f, v[c], "missing_value", NC_FLOAT, 1, &missing);
    wrong += nc_enddef(f);
    for (int r = 0; r < H; r++)
        rows[r] = -90 + 22.5 * r;
    wrong += nc_put_var_double(f, lat, rows);
    for (int c = 0; c < 2; c++)
        for (size_t t = 0; t < T; t++) {
            float plane[PLANE];
            for (int64_t i = 0; i < PLANE; i++)
                plane[i] = is_land(i / W, (i + turn) % W) ? missing : wind[c][t][i / W][(i + turn) % W];
            wrong += nc_put_vara_float(f, v[c], (size_t[]){t, 0, 0}, (size_t[]){1, H, W}, plane);
        }
    wrong += nc_close(f);
    WF_EXPECT(wrong == 0, "%s: %s", path, nc_strerror(wrong));
}

enum { ROWS = 513, COLUMNS = 1024, FACTOR = 4, BAND = 171 }; /* columns below BAND lie within 60 degrees */
static float height[ROWS][COLUMNS];

static void write_heights(const char *path)
{
    double rows[ROWS];
    int f, dim[2], v, lat;
    for (int r = 0; r < ROWS; r++) {
        rows[r] = 90 - 180.0 * r / (ROWS - 1);
        for (int x = 0; x < COLUMNS; x++)
            height[r][x] =
                (float)(800 * sin(0.39 * x) * cos(0.31 * r) + 300 * sin(0.05 * r * r / 40) + (r * 7 + x) % 5);
    }
    int wrong = nc_create(path, NC_CLOBBER, &f);
    wrong += nc_def_dim(f, "Y", ROWS, &dim[0]) + nc_def_dim(f, "X", COLUMNS, &dim[1]) +
             nc_def_var(f, "Y", NC_DOUBLE, 1, dim, &lat) + nc_def_var(f, "ROSE", NC_FLOAT, 2, dim, &v) + nc_enddef(f);
    wrong += nc_put_var_double(f, lat, rows) + nc_put_var_float(f, v, &height[0][0]) + nc_close(f);
    WF_EXPECT(wrong == 0, "%s: %s", path, nc_strerror(wrong));
}

/* Bilinear heights against those of the file, weighted by area, in the band. */
static double bilinear_error(void)
{
    double area[ROWS], rows[ROWS], squares = 0, weight = 0;
    for (int r = 0; r < ROWS; r++)
        rows[r] = 90 - 180.0 * r / (ROWS - 1);
    planet_area(ROWS, rows, area);
    for (int r = 0; r < ROWS; r++)
        for (int x = 0; x < BAND; x++) {
            const int up = r / FACTOR * FACTOR, left = x / FACTOR * FACTOR, right = (left + FACTOR) % COLUMNS;
            const int down = up + FACTOR < ROWS ? up + FACTOR : up;
            const double v = (r - up) / (double)FACTOR, h = (x - left) / (double)FACTOR;
            const double above = (1 - h) * (double)height[up][left] + h * (double)height[up][right];
            const double below = (1 - h) * (double)height[down][left] + h * (double)height[down][right];
            const double d = (1 - v) * above + v * below - (double)height[r][x];
            squares += area[r] * d * d;
            weight += area[r];
        }
    return sqrt(squares / weight);
}

/* The squares of one month's differences, weighted by area, without land. */
static void add_month(int c, int t, double *persistence, double *climatology, double *weight)
{
    const double degree = acos(-1.0) / 180;
    for (int r = 0; r < H; r++)
        for (int x = 0; x < W; x++) {
            double mean[2] = {0}, north = -90 + 22.5 * (r + 0.5), south = north - 22.5;
            const double area = sin((north > 90 ? 90 : north) * degree) - sin((south < -90 ? -90 : south) * degree);
            for (int m = 0; m < TRAINED; m++)
                for (int k = 0; k < 2; k++)
                    mean[k] += m % PERIOD == (t - k) % PERIOD ? (double)wind[c][m][r][x] * PERIOD / TRAINED : 0;
            const double is = (double)wind[c][t][r][x] - mean[0], was = (double)wind[c][t - 1][r][x] - mean[1];
            const double counts = is_land(r, x) ? 0 : area;
            *persistence += counts * (is - was) * (is - was);
            *climatology += counts * is * is;
            *weight += counts;
        }
}

static void areas(void)
{
    double area[3], sum = 0;
    planet_area(3, (double[]){-90, 0, 90}, area);
    for (int r = 0; r < 3; r++)
        sum += area[r];
    WF_EXPECT(fabs(sum - 3) < 1e-12 && fabs(area[1] / area[0] - sqrt(2) / (1 - sqrt(0.5))) < 1e-9, "areas %g %g %g",
              area[0], area[1], area[2]);
    planet_area(3, (double[]){60, 0, -60}, area);
    WF_EXPECT(fabs(area[1] - 1.5) < 1e-9 && fabs(area[2] - 0.75) < 1e-9, "areas %g %g", area[1], area[2]);
}

static void seams(void)
{
    /* Jumps 1, 1, 1 and 3 back over the seam; then a row twice as wide with none. */
    planet_jumps j = {0};
    planet_add_jumps(&j, (float[]){0, 1, 2, 3, 5, 5, 5, NAN}, 2, 4, (double[]){1, 2});
    WF_EXPECT(fabs(planet_jump(&j, 3) - 3.0 / (3.0 / 7)) < 1e-12, "seam %g", planet_jump(&j, 3));
    WF_EXPECT(fabs(planet_jump(&j, 1) - 1.0 / 3 / (5.0 / 5)) < 1e-12, "behind column 1 %g", planet_jump(&j, 1));
    planet_jumps_free(&j);
}

int main(int argc, char **argv)
{
    double persistence = 0, climatology = 0, weight = 0;
    const int failed = test_main(1, argv, (test_case[]){{"areas", areas}, {"seams", seams}, {0}});
    make_winds();
    write_winds(argv[1], 0);
    write_winds(argv[2], 5);
    for (int c = 0; c < 2; c++)
        for (int t = TRAINED; t < T; t++)
            add_month(c, t, &persistence, &climatology, &weight);
    write_heights(argv[3]);
    printf("%.4f %.4f %.4f\n", sqrt(persistence / weight), sqrt(climatology / weight), bilinear_error());
    return failed || test_failures() > 0;
}
