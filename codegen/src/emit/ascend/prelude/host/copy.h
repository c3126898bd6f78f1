// Host prelude for AscendC, part 3: copies.

namespace AscendC {

struct DataCopyParams {
    uint16_t blockCount = 0, blockLen = 0, srcGap = 0, dstGap = 0;
};
struct DataCopyExtParams {
#if __NPU_ARCH__ == 2201
    typedef uint32_t stride_t;
#else
    typedef int64_t stride_t;
#endif
    uint16_t blockCount = 0;
    uint32_t blockLen = 0;
    stride_t srcStride = 0, dstStride = 0;
    uint32_t rsv = 0;
};
template <class T> struct DataCopyPadExtParams {
    bool isPad = false;
    uint8_t leftPadding = 0, rightPadding = 0;
    T paddingValue = T();
};

// GM -> UB.
template <class T>
inline void DataCopyPad(
    const LocalTensor<T>& ub, const GlobalTensor<T>& gm, const DataCopyExtParams& p, const DataCopyPadExtParams<T>& pad,
    KILN_LINE)
{
    kiln_do(
        10, line, ub.place, ub.bytes, gm.kiln_address(), sizeof(T), p.blockCount, p.blockLen, p.srcStride, p.dstStride,
        pad.isPad, pad.leftPadding, pad.rightPadding, kiln_bits(pad.paddingValue));
}
// UB -> GM.
template <class T>
inline void DataCopyPad(
    const GlobalTensor<T>& gm, const LocalTensor<T>& ub, const DataCopyExtParams& p, KILN_LINE)
{
    kiln_do(
        11, line, gm.kiln_address(), ub.place, ub.bytes, p.blockCount, p.blockLen, p.srcStride, p.dstStride);
}

// GM -> L1, rows to column blocks of one line.
struct Nd2NzParams {
#if __NPU_ARCH__ == 2201
    typedef uint16_t wide_t;
    typedef uint16_t matrix_t;
#else
    typedef uint32_t wide_t;
    typedef uint64_t matrix_t;
#endif
    uint16_t ndNum = 0, nValue = 0;
    wide_t dValue = 0;
    matrix_t srcNdMatrixStride = 0, srcDValue = 0;
    uint16_t dstNzC0Stride = 0, dstNzNStride = 0;
    wide_t dstNzMatrixStride = 0;
};
template <class T>
inline void DataCopy(const LocalTensor<T>& l1, const GlobalTensor<T>& gm, const Nd2NzParams& p, KILN_LINE)
{
    kiln_do(
        13, line, l1.place, l1.bytes, gm.kiln_address(), sizeof(T), p.ndNum, p.nValue, p.dValue, p.srcDValue,
        p.dstNzC0Stride, p.dstNzNStride);
}

#if __NPU_ARCH__ == 3510
// UB -> L1.
template <class T>
inline void DataCopy(const LocalTensor<T>& l1, const LocalTensor<T>& ub, const DataCopyParams& p, KILN_LINE)
{
    kiln_do(
        12, line, l1.place, l1.bytes, ub.place, ub.bytes, p.blockCount, p.blockLen, p.srcGap, p.dstGap);
}
#endif

// L1 -> L0.
#if __NPU_ARCH__ == 2201
struct LoadData2DParams {
    uint16_t startIndex = 0, dstGap = 0, srcStride = 0;
    bool ifTranspose = false;
    uint8_t repeatTimes = 0, sid = 0, addrMode = 0;
};
template <class T>
inline void LoadData(const LocalTensor<T>& l0, const LocalTensor<T>& l1, const LoadData2DParams& p, KILN_LINE)
{
    kiln_do(
        14, line, l0.place, l0.bytes, l1.place, l1.bytes, sizeof(T), p.ifTranspose, p.startIndex, p.repeatTimes,
        p.srcStride, p.dstGap);
}
#else
struct LoadData2DParamsV2 {
    uint32_t mStartPosition = 0, kStartPosition = 0;
    uint16_t mStep = 0, kStep = 0;
    int32_t srcStride = 0;
    uint16_t dstStride = 0;
    bool ifTranspose = false;
    uint8_t sid = 0;
};
template <class T>
inline void LoadData(const LocalTensor<T>& l0, const LocalTensor<T>& l1, const LoadData2DParamsV2& p, KILN_LINE)
{
    kiln_do(
        15, line, l0.place, l0.bytes, l1.place, l1.bytes, sizeof(T), p.ifTranspose, p.mStartPosition, p.kStartPosition,
        p.mStep, p.kStep, p.srcStride, p.dstStride);
}
#endif

// ---- cube --------------------------------------------------------------------------------------------
struct MmadParams {
    uint16_t m = 0, n = 0, k = 0;
    uint8_t unitFlag = 0;
    bool cmatrixSource = false, cmatrixInitVal = true;
};
template <class T> struct kiln_multiplies {
    static constexpr bool value = false;
};
template <> struct kiln_multiplies<half> {
    static constexpr bool value = true;
};
template <> struct kiln_multiplies<bfloat16_t> {
    static constexpr bool value = true;
};
#if __NPU_ARCH__ == 3510
template <> struct kiln_multiplies<fp8_e4m3fn_t> {
    static constexpr bool value = true;
};
template <> struct kiln_multiplies<fp8_e5m2_t> {
    static constexpr bool value = true;
};
#endif
template <class T>
inline void Mmad(
    const LocalTensor<float>& c, const LocalTensor<T>& a, const LocalTensor<T>& b, const MmadParams& p, KILN_LINE)
{
    static_assert(kiln_multiplies<T>::value, "the cube of this chip does not multiply this type");
    kiln_do(
        16, line, c.place, c.bytes, a.place, a.bytes, b.place, b.bytes, kiln_type<T>::value, p.m, p.n, p.k,
        p.cmatrixInitVal, p.unitFlag, p.cmatrixSource);
}

enum class CO2Layout { NZ, ROW_MAJOR, COLUMN_MAJOR };
struct FixpipeConfig {
    CO2Layout format;
    bool isToUB = false;
};
constexpr FixpipeConfig CFG_ROW_MAJOR = {CO2Layout::ROW_MAJOR, false};

#if __NPU_ARCH__ == 2201
struct FixpipeParamsV220 {
    uint16_t nSize = 0, mSize = 0, srcStride = 0;
    uint32_t dstStride = 0;
    uint16_t ndNum = 1, srcNdStride = 0, dstNdStride = 0;
};
template <class D, class S, const FixpipeConfig& CFG = CFG_ROW_MAJOR>
inline void Fixpipe(const GlobalTensor<D>& gm, const LocalTensor<S>& c, const FixpipeParamsV220& p, KILN_LINE)
{
    static_assert(CFG.format == CO2Layout::ROW_MAJOR && !CFG.isToUB, "accumulators leave in rows to global memory");
    static_assert(sizeof(D) == 4 && sizeof(S) == 4, "accumulators leave as f32");
    kiln_do(
        17, line, gm.kiln_address(), c.place, c.bytes, p.mSize, p.nSize, p.srcStride, p.dstStride, p.ndNum);
}
#else
template <CO2Layout L> struct FixpipeParamsArch3510 {
    uint16_t nSize = 0, mSize = 0, srcStride = 0;
    uint32_t dstStride = 0;
    uint8_t dualDstCtl = 0;
    bool subBlockId = false;
    struct {
        uint16_t ndNum = 1, srcNdStride = 0, dstNdStride = 0;
    } params;
};
template <class D, class S, const FixpipeConfig& CFG>
inline void Fixpipe(
    const LocalTensor<D>& ub, const LocalTensor<S>& c, const FixpipeParamsArch3510<CFG.format>& p, KILN_LINE)
{
    static_assert(CFG.format == CO2Layout::ROW_MAJOR && CFG.isToUB, "accumulators leave in rows to UB");
    static_assert(sizeof(D) == 4 && sizeof(S) == 4, "accumulators leave as f32");
    kiln_do(
        18, line, ub.place, ub.bytes, p.dualDstCtl, p.subBlockId, c.place, c.bytes, p.mSize, p.nSize, p.srcStride,
        p.dstStride, p.params.ndNum);
}
template <class D, class S, const FixpipeConfig& CFG = CFG_ROW_MAJOR>
inline void Fixpipe(
    const GlobalTensor<D>& gm, const LocalTensor<S>& c, const FixpipeParamsArch3510<CFG.format>& p, KILN_LINE)
{
    static_assert(CFG.format == CO2Layout::ROW_MAJOR && !CFG.isToUB, "accumulators leave in rows to global memory");
    static_assert(sizeof(D) == 4 && sizeof(S) == 4, "accumulators leave as f32");
    kiln_do(
        17, line, gm.kiln_address(), c.place, c.bytes, p.mSize, p.nSize, p.srcStride, p.dstStride, p.params.ndNum);
}
#endif

} // namespace AscendC
